// flock(2) as a C++ lock: SharedTimedMutex, for std::unique_lock and std::shared_lock.
#pragma once

#include <chrono>
#include <filesystem>

namespace moetap {

// A lock file that processes (and objects in one process: each has its own descriptor) exclude each
// other with. The kernel releases it when the process dies. One thread at a time an object.
class FileLock {
 public:
  // Opens or creates the file, mode 0600, following no symbolic link. SystemError; MismatchError if
  // it is another user's or no regular file.
  explicit FileLock(const std::filesystem::path& path);
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;
  ~FileLock();

  const std::filesystem::path& path() const { return path_; }

  void lock();
  bool try_lock();
  void unlock();
  void lock_shared();
  bool try_lock_shared();
  void unlock_shared() { unlock(); }

  // Polls with growing pauses, since flock has no time limit of its own.
  bool try_lock_for(std::chrono::milliseconds limit);
  bool try_lock_shared_for(std::chrono::milliseconds limit);

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace moetap
