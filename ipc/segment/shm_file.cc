#include "ipc/segment/shm_file.h"

#include <moetap/error.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <string_view>
#include <thread>

#include "ipc/internal/system_limits.h"
#include "ipc/segment/leftovers.h"

namespace moetap {
namespace {

constexpr std::chrono::milliseconds kLeased{100};

const char* kind_of(mode_t mode) {
  if (S_ISLNK(mode)) return "a symbolic link, which is not followed";
  if (S_ISFIFO(mode)) return "a named pipe";
  if (S_ISDIR(mode)) return "a directory";
  return "a socket or a device";
}

}  // namespace

void check_name(const std::string& name) {
  constexpr std::string_view allowed =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
  if (name.size() < 2 || name.size() > 255 || name[0] != '/' ||
      name.find_first_not_of(allowed, 1) != std::string::npos) {
    throw ArgumentError(
        fmt::format("'{}' is no name for shared memory: use '/' and then 1 to 254 letters, digits, "
                    "'-', '_', '.'",
                    name));
  }
}

struct stat file_status(int fd, const std::string& name) {
  struct stat status {};
  if (fstat(fd, &status) != 0) {
    throw SystemError(errno, fmt::format("cannot examine shared memory {}", name));
  }
  return status;
}

std::optional<struct stat> named_status(const std::string& name) {
  struct stat status {};
  if (lstat(("/dev/shm" + name).c_str(), &status) != 0) return std::nullopt;
  return status;
}

void check_ours(const struct stat& status, const std::string& name) {
  if (!S_ISREG(status.st_mode)) {
    throw MismatchError(
        fmt::format("/dev/shm{} is {}, no shared memory: see who made it (user {}), and remove it",
                    name, kind_of(status.st_mode), status.st_uid));
  }
  if (status.st_uid != geteuid()) {
    throw MismatchError(fmt::format(
        "shared memory {} is another user's, {}, not this process's user {}'s: run both "
        "ends as one user, or choose another instance name; if its user left it, let "
        "that user or root remove /dev/shm{}",
        name, status.st_uid, geteuid(), name));
  }
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    throw MismatchError(fmt::format(
        "shared memory {} has mode {:o}, so that others may write to it: see who made it so, then "
        "remove /dev/shm{} or choose another instance name",
        name, status.st_mode & 07777, name));
  }
}

[[noreturn]] void throw_open_error(const std::string& name, int error) {
  if (error == EACCES) {
    throw MismatchError(fmt::format(
        "shared memory {} may not be opened (permission denied): see who made it with which mode, "
        "or choose another instance name",
        name));
  }
  if (error == EWOULDBLOCK) {
    throw MismatchError(fmt::format(
        "shared memory {} has a lease on it (fcntl(2), F_SETLEASE), and ours are over at once: see "
        "who holds it (/proc/locks), then remove /dev/shm{} or choose another instance name",
        name, name));
  }
  if (struct stat status{}; error == ENOENT && stat("/dev/shm", &status) != 0) {
    throw SystemError(
        ENOTDIR,
        fmt::format("cannot open shared memory {}, since there is no /dev/shm here: mount it "
                    "(mount -t tmpfs tmpfs /dev/shm), for a container by its runtime, which "
                    "both ends must share (docker run --ipc=...)",
                    name));
  }
  throw SystemError(error, fmt::format("cannot open shared memory {}{}", name,
                                       limit_on_create(error, "/dev/shm")));
}

int open_existing(const std::string& name) {
  // Before it is opened, since open() would wait for another user's lease, or for a pipe's other
  // end.
  if (const auto named = named_status(name)) check_ours(*named, name);
  // One of ours that inspects the segment has a lease on it, for some microseconds.
  const auto deadline = std::chrono::steady_clock::now() + kLeased;
  for (;;) {
    const int fd = open_at_once(name);
    if (fd >= 0 || errno != EWOULDBLOCK || std::chrono::steady_clock::now() >= deadline) return fd;
    std::this_thread::yield();
  }
}

int open_or_create(const std::string& name) {
  for (;;) {
    const int made = shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, kSegmentMode);
    if (made >= 0) {
      fchmod(made, kSegmentMode);  // whatever the umask is
      return made;
    }
    if (errno != EEXIST) return -1;
    const int found = open_existing(name);
    if (found >= 0 || errno != ENOENT) return found;
  }
}

}  // namespace moetap
