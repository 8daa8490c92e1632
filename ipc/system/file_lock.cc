#include "ipc/internal/file_lock.h"

#include <moetap/error.h>

#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "ipc/internal/wait.h"

namespace moetap {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// The process with the lock copies rows, which takes up to a few hundred microseconds.
constexpr microseconds kFirstPause{10};
constexpr microseconds kLongestPause{250};

// "1: FLOCK  ADVISORY  WRITE 4711 00:1a:1234 0 EOF"; a waiter's line has "->" as second word.
pid_t parse_holder(const std::string& line, const std::string& file) {
  std::istringstream words(line);
  std::string number, kind, mode, access, inode;
  pid_t pid = 0;
  words >> number >> kind >> mode >> access >> pid >> inode;
  return words && kind == "FLOCK" && inode == file ? pid : 0;
}

[[noreturn]] void throw_timeout(const FileLock& lock, milliseconds timeout) {
  const pid_t holder = lock.holder();
  throw TimeoutError(
      fmt::format("the lock of {} was not free within {} ms; it is held by {}: see why that "
                  "process does not let "
                  "go (stopped in a debugger?), or raise the endpoint's timeout",
                  lock.path().string(), timeout.count(),
                  holder != 0 ? fmt::format("process {}", holder) : "an unknown process"));
}

}  // namespace

bool FileLock::take(int operation) {
  while (flock(fd_, operation) != 0) {
    if (errno == EWOULDBLOCK) return false;
    if (errno != EINTR) {
      throw SystemError(errno, fmt::format("cannot lock {}", path_.string()));
    }
  }
  return true;
}

void FileLock::lock() { take(LOCK_EX); }
bool FileLock::try_lock() { return take(LOCK_EX | LOCK_NB); }
void FileLock::unlock() { take(LOCK_UN); }
void FileLock::lock_shared() { take(LOCK_SH); }
bool FileLock::try_lock_shared() { return take(LOCK_SH | LOCK_NB); }

bool FileLock::try_lock_for(milliseconds timeout) { return poll(LOCK_EX | LOCK_NB, timeout); }
bool FileLock::try_lock_shared_for(milliseconds timeout) {
  return poll(LOCK_SH | LOCK_NB, timeout);
}

bool FileLock::poll(int operation, milliseconds timeout) {
  if (take(operation)) return true;
  const auto deadline = deadline_after(timeout);
  for (auto stop = std::min(deadline, Clock::now() + kSpin); Clock::now() < stop; detail::pause()) {
    if (take(operation)) return true;
  }
  for (auto pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    if (take(operation)) return true;
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(pause);
  }
}

pid_t FileLock::holder() const {
  struct stat status {};
  if (fstat(fd_, &status) != 0) {
    throw SystemError(errno, fmt::format("cannot examine {}", path_.string()));
  }
  const auto listed =
      fmt::format("{:02x}:{:02x}:{}", major(status.st_dev), minor(status.st_dev), status.st_ino);
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    if (const pid_t pid = parse_holder(line, listed); pid != 0) return pid;
  }
  return 0;
}

std::unique_lock<FileLock> lock_within(FileLock& lock, milliseconds timeout) {
  std::unique_lock<FileLock> held(lock, timeout);
  if (!held) throw_timeout(lock, timeout);
  return held;
}

std::shared_lock<FileLock> lock_shared_within(FileLock& lock, milliseconds timeout) {
  std::shared_lock<FileLock> held(lock, timeout);
  if (!held) throw_timeout(lock, timeout);
  return held;
}

}  // namespace moetap
