#include "ipc/store/block_directory.h"

#include <moetap/error.h>

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <memory>
#include <tuple>

#include "ipc/internal/system_limits.h"
#include "ipc/store/block_file.h"
#include "ipc/system/own_file.h"

namespace moetap {
namespace {

constexpr std::string_view kUnfinished = ".unfinished-";

// Longer than any create() takes: an older file was left by a process that died in create().
constexpr std::time_t kLeftoverSeconds = 600;

OpenFile open_directory(const std::filesystem::path& path) {
  const std::string text = path.string();
  if (mkdir(text.c_str(), 0700) != 0 && errno != EEXIST) {
    throw SystemError(errno, fmt::format("cannot make the block directory {}", text));
  }
  OpenFile directory([&] { return ::open(text.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  struct stat status {};
  if (directory.fd() < 0 || fstat(directory.fd(), &status) != 0) {
    const int error = errno;
    throw SystemError(
        error, fmt::format("cannot open the block directory {}{}", text, limit_on_open(error)));
  }
  if (status.st_uid != geteuid() || (status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    throw MismatchError(fmt::format(
        "block directory {} is user {}'s with mode {:o}; it must be this user's ({}) and writable "
        "by no other: chmod go-w, or choose another",
        text, status.st_uid, status.st_mode & 07777, geteuid()));
  }
  return directory;
}

bool write_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return true;
}

}  // namespace

std::vector<std::byte> OpenFile::read(std::size_t most) const {
  std::vector<std::byte> bytes(most);
  std::size_t size = 0;
  while (size < most) {
    const ssize_t n = pread(fd(), bytes.data() + size, most - size, static_cast<off_t>(size));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw SystemError(errno, "cannot read a block file");
    if (n == 0) break;
    size += static_cast<std::size_t>(n);
  }
  bytes.resize(size);
  return bytes;
}

// The time that the system sets by itself comes from a coarser clock, which would lose the order of
// uses in quick succession. A failure only loses that order.
void OpenFile::touch() const {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  const timespec times[2] = {now, now};
  futimens(fd(), times);
}

BlockDirectory::BlockDirectory(const std::filesystem::path& path)
    : path_(path), directory_(open_directory(path)) {}

std::optional<OpenFile> BlockDirectory::open(const std::string& name,
                                             std::uint64_t& refused) const {
  OpenFile file([&] {
    return openat(directory_.fd(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  });
  if (file.fd() < 0) {
    if (errno == ENOENT) return std::nullopt;
    if (errno != ELOOP && errno != EACCES) {
      const int error = errno;
      throw SystemError(
          error, fmt::format("cannot open {}{}", (path_ / name).string(), limit_on_open(error)));
    }
    ++refused;
    return std::nullopt;
  }
  struct stat status {};
  if (fstat(file.fd(), &status) != 0 || !is_own_file(status)) {
    ++refused;
    return std::nullopt;
  }
  return file;
}

// Not synced to disk: the checksum detects damage by a power failure.
bool BlockDirectory::create(const std::string& name, std::span<const std::byte> bytes) const {
  require_file_size(bytes.size(), (path_ / name).string());
  // A unique name, across containers and stores.
  std::uint64_t number = 0;
  if (getrandom(&number, sizeof number, 0) != sizeof number) {
    throw SystemError(errno, "no random number for the name of a block file");
  }
  const std::string temporary = fmt::format("{}{:016x}", kUnfinished, number);
  const auto fail = [&](const char* what) {
    const int error = errno;
    unlinkat(directory_.fd(), temporary.c_str(), 0);
    std::string why = limit_on_open(error);
    if (why.empty()) {
      why = error == ENOENT ? ": someone else removed its directory or its unfinished file; leave "
                              "both to the stores that use them"
                            : ": make room there, or lower max_bytes of the block store";
    }
    throw SystemError(error, fmt::format("cannot {} {} of {} bytes{}", what,
                                         (path_ / name).string(), bytes.size(), why));
  };
  const OpenFile file([&] {
    return openat(directory_.fd(), temporary.c_str(),
                  O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  });
  if (file.fd() < 0) fail("create");
  if (!write_all(file.fd(), bytes)) fail("write");
  file.touch();
  // Unlike rename(2) this never replaces an existing file.
  const bool linked =
      linkat(directory_.fd(), temporary.c_str(), directory_.fd(), name.c_str(), 0) == 0;
  if (!linked && errno != EEXIST) fail("name");
  unlinkat(directory_.fd(), temporary.c_str(), 0);
  return linked;
}

bool BlockDirectory::lock(const std::string& name, const OpenFile& file, bool exclusive) const {
  if (flock(file.fd(), (exclusive ? LOCK_EX : LOCK_SH) | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return false;
    throw SystemError(errno, fmt::format("cannot lock {}", (path_ / name).string()));
  }
  struct stat ours {};
  struct stat named {};
  return fstat(file.fd(), &ours) == 0 &&
         fstatat(directory_.fd(), name.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 &&
         same_file(ours, named);
}

bool BlockDirectory::remove(const std::string& name, const OpenFile& file) const {
  if (!lock(name, file, true)) return false;
  return unlinkat(directory_.fd(), name.c_str(), 0) == 0 || errno == ENOENT;
}

std::vector<BlockDirectory::Entry> BlockDirectory::list() const {
  const int fd = openat(directory_.fd(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(fd < 0 ? nullptr : fdopendir(fd), closedir);
  if (!stream) {
    const int error = errno;
    if (fd >= 0) close(fd);
    throw SystemError(error, fmt::format("cannot list {}{}", path_.string(), limit_on_open(error)));
  }
  std::vector<Entry> entries;
  const std::time_t now = std::time(nullptr);
  while (const dirent* found = readdir(stream.get())) {
    const std::string name = found->d_name;
    const bool unfinished = name.starts_with(kUnfinished);
    struct stat status {};
    if ((!unfinished && !name.ends_with(BlockFile::kSuffix)) ||
        fstatat(directory_.fd(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 ||
        !is_own_file(status)) {
      continue;
    }
    if (!unfinished) {
      entries.push_back({name, static_cast<std::size_t>(status.st_size), status.st_mtim});
    } else if (status.st_mtim.tv_sec + kLeftoverSeconds < now) {
      unlinkat(directory_.fd(), name.c_str(), 0);
    }
  }
  std::ranges::sort(entries, {}, [](const Entry& entry) {
    return std::tuple(entry.used.tv_sec, entry.used.tv_nsec);
  });
  return entries;
}

}  // namespace moetap
