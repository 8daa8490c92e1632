// What a forked child must not have of its parent: the locks, and the part of a maker.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <utility>

namespace moetap {

// A lock of an open file description lasts until the last copy of its descriptor is closed, and a
// forked child has copies of all (exec closes them: they are close-on-exec). So that a lock ends
// with the process that took it, a child gets a description of its own in the place of each guarded
// descriptor: of the same file, without locks. Of fork(2) in the C library only: who makes
// processes by other calls has to run exec in them.
//
// While a NoForks lives, a fork() of another thread waits, so that it finds a descriptor either not
// there or guarded. Held for calls that open, close and register, and never for one that waits for
// a lock. Not recursive.
class NoForks {
 public:
  NoForks();
  ~NoForks();
  NoForks(const NoForks&) = delete;
  NoForks& operator=(const NoForks&) = delete;

  // What was opened under this very NoForks.
  void guard(int fd);
  // What is closed under it. One that is not guarded is none of its business.
  void forget(int fd) noexcept;
};

void close_guarded(int fd) noexcept;

// Another number in a child than in its parent, and so in whatever the child has of the parent's:
// pids are no such thing, since a child in a PID namespace of its own may have its parent's. Of
// fork(2) in the C library, as above.
std::uint64_t fork_generation() noexcept;

// A member of what only the process that made it may use: a forked child's copy has the same
// memory at its other end, but none of the locks and counters that keep two writers apart.
class Maker {
 public:
  bool is_this_process() const noexcept { return generation_ == fork_generation(); }
  // StateError in any other. `what` is the object: "the ShmWriter of /moetap_engine_0".
  template <class... What>
  void require(const What&... what) const {
    if (!is_this_process()) throw_forked((std::string() + ... + what));
  }

 private:
  [[noreturn]] static void throw_forked(const std::string& what);

  std::uint64_t generation_ = fork_generation();
};

// Owns a descriptor whose locks are this process's alone.
class GuardedDescriptor {
 public:
  GuardedDescriptor() = default;
  // open() returns a descriptor, or -1 and sets errno, which is still so after this.
  template <std::invocable Open>
  explicit GuardedDescriptor(Open&& open) : GuardedDescriptor() {
    NoForks none;
    fd_ = open();
    if (fd_ >= 0) none.guard(fd_);
  }
  GuardedDescriptor(GuardedDescriptor&& other) noexcept : fd_(other.release()) {}
  GuardedDescriptor& operator=(GuardedDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~GuardedDescriptor() {
    if (fd_ >= 0) close_guarded(fd_);
  }

  int get() const { return fd_; }
  int release() noexcept { return std::exchange(fd_, -1); }  // for close_guarded()

 private:
  int fd_ = -1;
};

}  // namespace moetap
