// flock(2) as a C++ lock: SharedTimedMutex, for std::unique_lock and std::shared_lock.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <shared_mutex>

namespace moetap {

// A lock file that processes (and objects in one process: each has its own descriptor) exclude each
// other with. The kernel releases it when the process dies; its forked children have no part in it.
// One thread at a time an object.
class FileLock {
 public:
  // Opens the file, or creates it, mode 0600, following no symbolic link. SystemError;
  // MismatchError if it is another user's or no regular file.
  enum class Open : std::uint8_t { or_create, existing };
  explicit FileLock(const std::filesystem::path& path, Open how = Open::or_create);
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

  // Which file it is, whatever its path leads to by now: two locks exclude each other if equal.
  struct File {
    std::uint64_t device = 0;
    std::uint64_t inode = 0;
    bool operator==(const File&) const = default;
  };
  File file() const;

  // A process that holds the lock, as /proc/locks has it; 0 if none does or it is not listed there
  // (another PID namespace, some overlay file systems).
  pid_t holder() const;

 private:
  bool take(int operation);
  bool poll(int operation, std::chrono::milliseconds limit);

  std::filesystem::path path_;
  int fd_ = -1;
};

// Holds the lock, or TimeoutError with the file and the process that holds it.
std::unique_lock<FileLock> lock_within(FileLock& lock, std::chrono::milliseconds limit);
std::shared_lock<FileLock> lock_shared_within(FileLock& lock, std::chrono::milliseconds limit);

}  // namespace moetap
