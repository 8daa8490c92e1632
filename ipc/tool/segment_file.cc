#include "segment_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "claim.h"
#include "failure.h"
#include "native_layout.h"

namespace moetap::tool {
namespace {

std::size_t rows_offset(std::int64_t num_slots) {
  return sizeof(ShmControl) + SlotBuffer::bytes(num_slots, 0);
}

}  // namespace

SegmentFile::SegmentFile(const std::string& name)
    : name_(name), fd_(shm_open(name.c_str(), O_RDONLY, 0)) {
  if (fd_ < 0 && errno == ENOENT) throw NotThere(fmt::format("no shared memory {}", name));
  struct stat status {};
  if (fd_ >= 0 && fstat(fd_, &status) == 0 && S_ISREG(status.st_mode)) {
    bytes_ = static_cast<std::size_t>(status.st_size);
    return;
  }
  if (fd_ >= 0) close(fd_);
  throw MismatchError(fmt::format("shared memory {} is another user's, or is none", name));
}

SegmentFile::~SegmentFile() { close(fd_); }

pid_t SegmentFile::owner_pid() const { return claimant(fd_, Role::owner); }

void SegmentFile::read(std::size_t offset, std::span<std::byte> to) const {
  while (!to.empty()) {
    const ssize_t n = pread(fd_, to.data(), to.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw SystemError(errno, fmt::format("cannot read shared memory {}", name_));
    if (n == 0) {
      throw MismatchError(fmt::format("{} ends before byte {}", name_, offset + to.size()));
    }
    to = to.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::size_t>(n);
  }
}

std::vector<Step> read_stamps(const SegmentFile& file, std::int64_t num_slots) {
  std::vector<Step> stamps(static_cast<std::size_t>(num_slots));
  file.read(sizeof(ShmControl), std::as_writable_bytes(std::span(stamps)));
  std::ranges::replace(stamps, kWriting, Step{0});
  return stamps;
}

void read_rows(const SegmentFile& file, std::int64_t num_slots, std::size_t row_bytes,
               std::span<const Slot> slots, std::span<std::byte> rows) {
  for (std::size_t i = 0; i < slots.size();) {
    const std::size_t run = run_length(slots.subspan(i));
    file.read(rows_offset(num_slots) + static_cast<std::size_t>(slots[i]) * row_bytes,
              rows.subspan(i * row_bytes, run * row_bytes));
    i += run;
  }
}

}  // namespace moetap::tool
