#include <moetap/error.h>
#include <moetap/file_lock.h>
#include <moetap/wait.h>

#include <fcntl.h>
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
#include <utility>

#include "ipc/internal/system_limits.h"
#include "ipc/system/fork_guard.h"

namespace moetap {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// The holder copies rows meanwhile, which takes microseconds to a few hundred of them.
constexpr microseconds kFirstPause{10};
constexpr microseconds kLongestPause{250};

GuardedDescriptor open_lock_file(const std::filesystem::path& path, FileLock::Open how) {
  const int create = how == FileLock::Open::or_create ? O_CREAT : 0;
  GuardedDescriptor file(
      // Without waiting for a lease that another user has on a file of theirs.
      [&] {
        return ::open(path.c_str(), O_RDWR | create | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
      });
  if (file.get() >= 0) return file;
  const int error = errno;
  if (error == ELOOP || error == EISDIR) {
    throw MismatchError(fmt::format(
        "lock file {} is a link or no regular file: remove it, or choose another directory",
        path.string()));
  }
  if (error == EWOULDBLOCK) {
    throw MismatchError(
        fmt::format("lock file {} has a lease on it (fcntl(2), F_SETLEASE), which none of ours "
                    "has: see who holds it (/proc/locks), then remove it, or choose another "
                    "directory",
                    path.string()));
  }
  if (const std::string limit = limit_on_create(error, path.parent_path()); !limit.empty()) {
    throw SystemError(error, fmt::format("cannot open lock file {}{}", path.string(), limit));
  }
  throw SystemError(error, fmt::format("cannot open lock file {}: its directory must exist and be "
                                       "writable, and the file this user's",
                                       path.string()));
}

// "1: FLOCK  ADVISORY  WRITE 4711 00:1a:1234 0 EOF"; a waiter's line has "->" as second word.
pid_t parse_holder(const std::string& line, const std::string& file) {
  std::istringstream words(line);
  std::string number, kind, mode, access, inode;
  pid_t pid = 0;
  words >> number >> kind >> mode >> access >> pid >> inode;
  return words && kind == "FLOCK" && inode == file ? pid : 0;
}

[[noreturn]] void throw_timeout(const FileLock& lock, milliseconds limit) {
  const pid_t holder = lock.holder();
  throw TimeoutError(fmt::format(
      "lock file {} was not free within {} ms; it is held by {}: see why that process does not let "
      "go (stopped in a debugger?), or raise the endpoint's limit",
      lock.path().string(), limit.count(),
      holder != 0 ? fmt::format("process {}", holder) : "an unknown process"));
}

}  // namespace

FileLock::FileLock(const std::filesystem::path& path, Open how) : path_(path) {
  GuardedDescriptor opened = open_lock_file(path, how);
  struct stat status {};
  if (fstat(opened.get(), &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == geteuid()) {
    fd_ = opened.release();
    return;
  }
  throw MismatchError(
      fmt::format("lock file {} is no regular file, or belongs to another user than {}: remove it, "
                  "or choose another directory",
                  path.string(), geteuid()));
}

FileLock::FileLock(FileLock&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  FileLock moved(std::move(other));
  std::swap(path_, moved.path_);
  std::swap(fd_, moved.fd_);
  return *this;
}

FileLock::~FileLock() {
  if (fd_ >= 0) close_guarded(fd_);
}

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

bool FileLock::try_lock_for(milliseconds limit) { return poll(LOCK_EX | LOCK_NB, limit); }
bool FileLock::try_lock_shared_for(milliseconds limit) { return poll(LOCK_SH | LOCK_NB, limit); }

bool FileLock::poll(int operation, milliseconds limit) {
  if (take(operation)) return true;
  const auto deadline = deadline_after(limit);
  for (auto stop = std::min(deadline, Clock::now() + kSpin); Clock::now() < stop; detail::pause()) {
    if (take(operation)) return true;
  }
  for (auto pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    if (take(operation)) return true;
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(pause);
  }
}

FileLock::File FileLock::file() const {
  struct stat status {};
  if (fstat(fd_, &status) != 0) {
    throw SystemError(errno, fmt::format("cannot examine lock file {}", path_.string()));
  }
  return {status.st_dev, status.st_ino};
}

pid_t FileLock::holder() const {
  const auto [device, inode] = file();
  const auto listed = fmt::format("{:02x}:{:02x}:{}", major(device), minor(device), inode);
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    if (const pid_t pid = parse_holder(line, listed); pid != 0) return pid;
  }
  return 0;
}

std::unique_lock<FileLock> lock_within(FileLock& lock, milliseconds limit) {
  std::unique_lock<FileLock> held(lock, limit);
  if (!held) throw_timeout(lock, limit);
  return held;
}

std::shared_lock<FileLock> lock_shared_within(FileLock& lock, milliseconds limit) {
  std::shared_lock<FileLock> held(lock, limit);
  if (!held) throw_timeout(lock, limit);
  return held;
}

}  // namespace moetap
