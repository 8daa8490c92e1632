// Keeps from a forked child what only its parent may have: locks, and the role of a creator.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <utility>

namespace moetap {

// A lock of an open file description lasts until the last copy of its descriptor is closed, and a
// forked child has copies of all descriptors. (exec closes them: they are close-on-exec.) A lock
// must end with the process that took it. So each guarded descriptor is replaced in the child by a
// new description of the same file, without locks. This covers only fork(2) of the C library:
// processes made by other calls must exec.
//
// While a NoForks exists, fork() in another thread waits, so that a descriptor is either not open
// or guarded. Used around calls that open, close and register, never around a wait for a lock. Not
// recursive.
class NoForks {
 public:
  NoForks();
  ~NoForks();
  NoForks(const NoForks&) = delete;
  NoForks& operator=(const NoForks&) = delete;

  // Registers a descriptor that was opened under this NoForks.
  void guard(int fd);
  // Unregisters a descriptor that is closed under it. Ignores one that is not guarded.
  void forget(int fd) noexcept;
};

void close_guarded(int fd) noexcept;

// A number that differs between child and parent, and so identifies objects that a child inherited.
// Pids do not: a child in its own PID namespace may have its parent's pid. Only for fork(2) of the
// C library, as above.
std::uint64_t fork_generation() noexcept;

// A member of classes whose objects only their creating process may use. A forked child's copy maps
// the same shared memory, but lacks the locks and counters that keep two writers apart.
class Maker {
 public:
  bool is_this_process() const noexcept { return generation_ == fork_generation(); }
  // StateError in any other process. `what` names the object: "the ShmWriter of /moetap_engine_0".
  template <class... What>
  void require(const What&... what) const {
    if (!is_this_process()) throw_forked((std::string() + ... + what));
  }

 private:
  [[noreturn]] static void throw_forked(const std::string& what);

  std::uint64_t generation_ = fork_generation();
};

// Owns a descriptor whose locks belong to this process only.
class GuardedDescriptor {
 public:
  GuardedDescriptor() = default;
  // open() returns a descriptor, or -1 and sets errno, which stays set after this.
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
