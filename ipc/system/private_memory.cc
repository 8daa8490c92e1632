#include "ipc/system/private_memory.h"

#include <moetap/error.h>

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>

#include "ipc/internal/system_limits.h"

namespace moetap {

PrivateMemory::PrivateMemory(std::size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    const int error = errno;
    throw SystemError(error, fmt::format("cannot map {} bytes for the reader's slot buffer{}",
                                         bytes, limit_on_map(error, bytes, Mapped::own)));
  }
  madvise(data, bytes, MADV_HUGEPAGE);  // optional: a kernel without huge pages works too
  bytes_ = {static_cast<std::byte*>(data), bytes};
}

PrivateMemory::~PrivateMemory() { munmap(bytes_.data(), bytes_.size()); }

}  // namespace moetap
