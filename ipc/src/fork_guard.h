// Locks of this process that a child must not keep alive.
#pragma once

#include <utility>

namespace moetap {

// A lock of an open file description lasts until the last copy of its descriptor is closed, and a
// forked child has copies of all (exec closes them: they are close-on-exec). So that a lock ends
// with the process that took it, a child gets a description of its own in the place of each guarded
// descriptor: of the same file, without locks. Of fork(2) in the C library only: who makes
// processes by other calls has to run exec in them.
void guard_from_children(int fd);
// Before the descriptor is closed. One that is not guarded is none of its business.
void forget_guard(int fd) noexcept;

// Owns a descriptor, guarded.
class GuardedDescriptor {
 public:
  explicit GuardedDescriptor(int fd = -1) : fd_(fd) {
    if (fd_ >= 0) guard_from_children(fd_);
  }
  GuardedDescriptor(GuardedDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  GuardedDescriptor& operator=(GuardedDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~GuardedDescriptor();

  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace moetap
