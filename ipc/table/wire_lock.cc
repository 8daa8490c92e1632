#include "ipc/table/wire_lock.h"

#include <moetap/error.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>
#include <system_error>

#include "ipc/internal/system_limits.h"
#include "ipc/system/own_file.h"

namespace moetap {
namespace {

namespace fs = std::filesystem;

bool writable_directory(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored) && access(path.c_str(), W_OK | X_OK) == 0;
}

fs::path temporary_directory() {
  for (const char* variable : {"TMPDIR", "TEMP", "TMP"}) {
    const char* set = std::getenv(variable);
    if (set != nullptr && *set != '\0' && writable_directory(set)) return fs::absolute(set);
  }
  for (const char* usual : {"/tmp", "/var/tmp", "/usr/tmp"}) {
    if (writable_directory(usual)) return usual;
  }
  if (writable_directory(".")) return fs::current_path();
  throw SystemError(
      ENOENT, "no directory for temporary files can be written to: set TMPDIR to one that can");
}

[[noreturn]] void throw_open_error(const fs::path& path, int error) {
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

GuardedDescriptor open_lock_file(const fs::path& path) {
  // Does not wait for another user's lease on their file.
  constexpr int kFlags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  GuardedDescriptor file([&] { return ::open(path.c_str(), kFlags, 0600); });
  if (file.get() < 0) throw_open_error(path, errno);
  struct stat status {};
  if (fstat(file.get(), &status) == 0 && is_own_file(status)) {
    return file;
  }
  throw MismatchError(
      fmt::format("lock file {} is no regular file, or belongs to another user than {}: remove it, "
                  "or choose another directory",
                  path.string(), geteuid()));
}

}  // namespace

fs::path wire_lock_path(const Endpoint& endpoint) {
  return temporary_directory() /
         fmt::format("vllm_routed_experts_{}_{}.lock", endpoint.instance, endpoint.dp_rank);
}

WireLock::WireLock(const fs::path& path)
    : GuardedDescriptor(open_lock_file(path)), FileLock(get(), path) {}

bool WireLock::is_current() const {
  struct stat ours {};
  struct stat named {};
  return lstat(path().c_str(), &named) == 0 && fstat(get(), &ours) == 0 && same_file(ours, named);
}

std::unique_lock<FileLock> WireLock::hold(Milliseconds timeout) {
  for (;;) {
    if (!is_current()) {
      GuardedDescriptor::operator=(open_lock_file(path()));
      use(get());
    }
    auto held = lock_within(*this, timeout);
    if (is_current()) return held;  // else it was replaced while this waited
  }
}

}  // namespace moetap
