// flock(2) as a C++ lock: SharedTimedMutex, for std::unique_lock and std::shared_lock.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <mutex>
#include <shared_mutex>
#include <utility>

namespace moetap {

// The lock of a file that its creator keeps open. It excludes every other open file description of
// the file, in this process too. The kernel releases it when the process dies. Forked children do
// not share it if the descriptor is guarded (fork_guard.h). One thread at a time per object.
class FileLock {
 public:
  // The path is for messages.
  FileLock(int fd, std::filesystem::path path) : path_(std::move(path)), fd_(fd) {}

  const std::filesystem::path& path() const { return path_; }

  // SystemError if the system refuses.
  void lock();
  bool try_lock();
  void unlock();
  void lock_shared();
  bool try_lock_shared();
  void unlock_shared() { unlock(); }

  // Polls with growing pauses, since flock has no timeout.
  bool try_lock_for(std::chrono::milliseconds timeout);
  bool try_lock_shared_for(std::chrono::milliseconds timeout);

  // The pid of a process that has the lock, from /proc/locks. 0 if there is none or it is not
  // listed there (another PID namespace, some overlay file systems).
  pid_t holder() const;

 protected:
  // From now on the lock of another file of this path. Not while it is held.
  void use(int fd) { fd_ = fd; }

 private:
  bool take(int operation);
  bool poll(int operation, std::chrono::milliseconds timeout);

  std::filesystem::path path_;
  int fd_;
};

// Takes the lock. TimeoutError with the file and the process that has the lock.
std::unique_lock<FileLock> lock_within(FileLock& lock, std::chrono::milliseconds timeout);
std::shared_lock<FileLock> lock_shared_within(FileLock& lock, std::chrono::milliseconds timeout);

}  // namespace moetap
