#include "private_memory.h"

#include <moetap/error.h>

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>

namespace moetap {

PrivateMemory::PrivateMemory(std::size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    throw SystemError(errno, fmt::format("no {} bytes of memory for the reader's slot buffer: "
                                         "configure fewer slots or raise the memory limit",
                                         bytes));
  }
  madvise(data, bytes, MADV_HUGEPAGE);  // a wish: a kernel without huge pages works too
  bytes_ = {static_cast<std::byte*>(data), bytes};
}

PrivateMemory::~PrivateMemory() { munmap(bytes_.data(), bytes_.size()); }

}  // namespace moetap
