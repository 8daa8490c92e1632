// A segment as a file that is read, never mapped. If its owner or another process changes it
// meanwhile (or truncates it), the worst case is an exception, and no process is disturbed.
#pragma once

#include <moetap/read_rows.h>
#include <moetap/types.h>

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "ipc/internal/file_lock.h"

namespace moetap::tool {

class SegmentFile {
 public:
  // NotThere. MismatchError if it may not be read or is not a plain file.
  explicit SegmentFile(const std::string& name);
  ~SegmentFile();
  SegmentFile(const SegmentFile&) = delete;
  SegmentFile& operator=(const SegmentFile&) = delete;

  const std::string& name() const { return name_; }
  // The present values.
  struct Size {
    std::size_t bytes = 0;
    std::size_t there = 0;  // bytes in memory: fewer for a sparse file
  };
  Size size() const;

  pid_t owner_pid() const;  // of its living owner; 0 if there is none
  FileLock lock() const { return {fd_, "/dev/shm" + name_}; }  // of a native buffer

  // MismatchError if the file is shorter.
  void read(std::size_t offset, std::span<std::byte> to) const;

  template <class T>
  T at(std::size_t offset) const {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    read(offset, std::as_writable_bytes(std::span(&value, 1)));
    return value;
  }

 private:
  std::string name_;
  int fd_;
};

// Stamps of a native buffer: the step that wrote a slot's row, 0 for none. The first function gives
// those of all slots in pieces, with each piece's first slot; the second those of the given slots.
void for_each_stamps(const SegmentFile& file, std::int64_t num_slots,
                     const std::function<void(Slot, std::span<const Step>)>& use);
std::vector<Step> stamps_of(const SegmentFile& file, std::span<const Slot> slots);

// The unchecked rows of these slots (narrow ids).
void read_rows(const SegmentFile& file, std::int64_t num_slots, std::size_t row_bytes,
               std::span<const Slot> slots, std::span<std::byte> rows);

}  // namespace moetap::tool
