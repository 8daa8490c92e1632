// A named piece of POSIX shared memory with an owner.
#pragma once

#include <boost/interprocess/mapped_region.hpp>
#include <boost/interprocess/shared_memory_object.hpp>
#include <sys/types.h>

#include <cstddef>
#include <span>
#include <string>

namespace moetap {

// Creates (and owns) or opens a segment. The owner holds flock(LOCK_EX) on the segment's own
// descriptor for its whole life, which the kernel releases when the process dies: a segment whose
// lock can be had has no living owner and is reclaimed by the next create(). Movable.
class Segment {
 public:
  // Reserves `bytes` (posix_fallocate, never SIGBUS later), mode 0600, zero-filled; reclaims the
  // leftover of a dead owner. OwnedError with the living owner's pid; SystemError with the bytes
  // needed and free, and what to change, if /dev/shm is too small; ArgumentError for a bad name.
  static Segment create(const std::string& name, std::size_t bytes);

  // Maps an existing one, whole. SystemError(ENOENT) if there is none; MismatchError for a segment
  // of another user or type.
  static Segment open(const std::string& name);

  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();  // the owner unlinks the name

  const std::string& name() const { return name_; }
  std::span<std::byte> bytes() const;
  bool owner_alive() const;  // also true in the owner itself
  pid_t owner_pid() const;   // as its creator wrote it beside the name; 0 if unknown

 private:
  Segment() = default;
  std::string name_;
  bool owner_ = false;
  boost::interprocess::shared_memory_object object_;
  boost::interprocess::mapped_region region_;
};

}  // namespace moetap
