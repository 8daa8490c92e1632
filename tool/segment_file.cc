#include "tool/segment_file.h"

#include <moetap/read_rows.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "ipc/internal/claim.h"
#include "ipc/internal/native_layout.h"
#include "tool/failure.h"

namespace moetap::tool {
namespace {

std::size_t rows_offset(std::int64_t num_slots) {
  return sizeof(ShmControl) + SlotBuffer::bytes(num_slots, 0);
}

void read_stamps(const SegmentFile& file, Slot first, std::span<Step> stamps) {
  file.read(sizeof(ShmControl) + static_cast<std::size_t>(first.value()) * sizeof(Step),
            std::as_writable_bytes(stamps));
  std::ranges::replace(stamps, kWriting, Step());
}

}  // namespace

// A pipe that another process put in its place must not block us.
SegmentFile::SegmentFile(const std::string& name)
    : name_(name), fd_(shm_open(name.c_str(), O_RDONLY | O_NONBLOCK, 0)) {
  if (fd_ < 0 && errno == ENOENT) throw NotThere(fmt::format("no shared memory {}", name));
  struct stat status {};
  if (fd_ >= 0 && fstat(fd_, &status) == 0 && S_ISREG(status.st_mode)) return;
  if (fd_ >= 0) close(fd_);
  throw MismatchError(fmt::format("shared memory {} is another user's, or is none", name));
}

SegmentFile::~SegmentFile() { close(fd_); }

SegmentFile::Size SegmentFile::size() const {
  struct stat status {};
  if (fstat(fd_, &status) != 0) {
    throw SystemError(errno, fmt::format("cannot examine shared memory {}", name_));
  }
  return {static_cast<std::size_t>(status.st_size),
          static_cast<std::size_t>(status.st_blocks) * 512};
}

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

void for_each_stamps(const SegmentFile& file, std::int64_t num_slots,
                     const std::function<void(Slot, std::span<const Step>)>& use) {
  constexpr std::int64_t kPiece = 1 << 16;
  std::vector<Step> piece(static_cast<std::size_t>(std::min(num_slots, kPiece)));
  for (std::int64_t first = 0; first < num_slots; first += kPiece) {
    const std::span stamps(piece.data(),
                           static_cast<std::size_t>(std::min(num_slots - first, kPiece)));
    read_stamps(file, Slot(first), stamps);
    use(Slot(first), stamps);
  }
}

std::vector<Step> stamps_of(const SegmentFile& file, std::span<const Slot> slots) {
  std::vector<Step> stamps(slots.size());
  for (std::size_t i = 0; i < slots.size();) {
    const std::size_t run = run_length(slots.subspan(i));
    read_stamps(file, slots[i], std::span(stamps).subspan(i, run));
    i += run;
  }
  return stamps;
}

void read_rows(const SegmentFile& file, std::int64_t num_slots, std::size_t row_bytes,
               std::span<const Slot> slots, std::span<std::byte> rows) {
  for (std::size_t i = 0; i < slots.size();) {
    const std::size_t run = run_length(slots.subspan(i));
    file.read(rows_offset(num_slots) + static_cast<std::size_t>(slots[i].value()) * row_bytes,
              rows.subspan(i * row_bytes, run * row_bytes));
    i += run;
  }
}

}  // namespace moetap::tool
