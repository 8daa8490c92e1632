#include "ipc/segment/shm_space.h"

#include <moetap/error.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>

#include "ipc/internal/system_limits.h"
#include "ipc/segment/shm_file.h"

namespace moetap {
namespace {

[[noreturn]] void throw_no_room(const std::string& name, int error, std::size_t bytes,
                                std::size_t free) {
  throw SystemError(
      error,
      fmt::format("shared memory {} needs {} bytes and /dev/shm has {} bytes free: enlarge it "
                  "(mount -o remount,size=... /dev/shm; docker run --shm-size=...), remove what "
                  "is left in it, or configure fewer slots or a shorter ring",
                  name, bytes, free));
}

std::size_t free_bytes(int fd, const std::string& name) {
  struct statvfs system {};
  if (fstatvfs(fd, &system) != 0) {
    throw SystemError(errno, fmt::format("cannot examine the file system of {}", name));
  }
  const bool bounded = system.f_blocks != 0;  // else a tmpfs without a size limit
  return bounded ? std::size_t{system.f_bavail} * system.f_frsize
                 : std::numeric_limits<std::size_t>::max();
}

// For this thread, during its lifetime.
class NoSignals {
 public:
  NoSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;
  ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

}  // namespace

void require_room(int fd, const std::string& name, std::size_t bytes) {
  require_file_size(bytes, fmt::format("shared memory {}", name));
  const std::size_t free = free_bytes(fd, name);
  const std::size_t held = static_cast<std::size_t>(file_status(fd, name).st_blocks) * 512;
  if (bytes > std::size_t{std::numeric_limits<off_t>::max()} ||
      (bytes > held && bytes - held > free)) {
    throw_no_room(name, ENOSPC, bytes, free);
  }
}

void set_size(int fd, const std::string& name, std::size_t bytes) {
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    throw_no_room(name, errno, bytes, free_bytes(fd, name));
  }
}

void reserve(int fd, const std::string& name, std::size_t bytes) {
  constexpr std::size_t kPiece = std::size_t{64} << 20;  // some tens of milliseconds
  const auto require = [&](int error) {
    if (error != 0) throw_no_room(name, error, bytes, free_bytes(fd, name));
  };
  for (std::size_t done = 0; done < bytes; done += kPiece) {
    const NoSignals none;
    const auto size = static_cast<off_t>(std::min(kPiece, bytes - done));
    // Other processes take the size as a sign that all memory is reserved.
    if (fallocate(fd, FALLOC_FL_KEEP_SIZE, static_cast<off_t>(done), size) == 0) continue;
    if (errno != EOPNOTSUPP) require(errno);
    require(posix_fallocate(fd, 0, static_cast<off_t>(bytes)));
    return;
  }
  set_size(fd, name, bytes);
}

}  // namespace moetap
