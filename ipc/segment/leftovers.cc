#include "ipc/segment/leftovers.h"

#include <moetap/error.h>
#include <moetap/segments.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>
#include <system_error>
#include <utility>

#include "ipc/internal/claim.h"
#include "ipc/internal/names.h"
#include "ipc/internal/native_layout.h"
#include "ipc/internal/ring.h"
#include "ipc/internal/system_limits.h"
#include "ipc/system/fork_guard.h"
#include "lib/internal/injection.h"

namespace moetap {
namespace {

namespace fs = std::filesystem;

bool same(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

bool ours(const struct stat& status) {
  return S_ISREG(status.st_mode) && status.st_uid == geteuid();
}

std::optional<struct stat> status_of(const std::string& name) {
  struct stat status {};
  if (lstat(("/dev/shm" + name).c_str(), &status) != 0) return std::nullopt;
  return status;
}

// Closed unless it is this user's plain file. What is not is not even opened. SystemError when out
// of descriptors: nobody can tell then whose it is.
GuardedDescriptor open_ours(const std::string& name) {
  const auto named = status_of(name);
  if (!named || !ours(*named)) return {};
  GuardedDescriptor file([&] { return open_at_once(name); });
  if (const int error = errno; file.get() < 0 && !limit_on_open(error).empty()) {
    throw SystemError(error,
                      fmt::format("cannot open shared memory {}{}", name, limit_on_open(error)));
  }
  struct stat opened {};
  if (file.get() < 0 || fstat(file.get(), &opened) != 0 || !ours(opened)) return {};
  return file;
}

// Read, not mapped: a segment that shrinks meanwhile must not be the end of this process.
template <class T>
std::optional<T> read_at(int fd, std::size_t offset) {
  T value;
  if (pread(fd, &value, sizeof value, static_cast<off_t>(offset)) != sizeof value) return {};
  return value;
}

SegmentInfo::Kind kind_of(const std::string& name, int fd) {
  if (name.starts_with(kWirePrefix)) return SegmentInfo::Kind::wire;
  const auto magic = read_at<std::uint64_t>(fd, 0);  // at the start of each control block
  if (magic == kShmMagic) return SegmentInfo::Kind::shm;
  if (magic == kRingMagic) return SegmentInfo::Kind::ring;
  return SegmentInfo::Kind::other;
}

struct StoredPath {
  char text[sizeof(ShmControl::lock_path)];
};

// The path in the control block, which is there before the file is. Nothing but a file of the
// segment's own name is believed, so that no other can be removed for what a segment says.
fs::path stored_lock_file(const std::string& name, int fd) {
  const auto magic = read_at<std::uint64_t>(fd, 0);
  if (magic != kShmMagic && magic != 0) return {};
  const auto stored = read_at<StoredPath>(fd, offsetof(ShmControl, lock_path));
  if (!stored || std::memchr(stored->text, '\0', sizeof stored->text) == nullptr) return {};
  fs::path path(stored->text);
  if (!path.is_absolute() || path.filename() != lock_file_name(name.substr(1))) return {};
  return path;
}

// Nothing if it is gone by now.
std::optional<SegmentInfo> describe(const std::string& name) {
  SegmentInfo info{.name = name};
  const auto status = status_of(name);
  if (!status) return std::nullopt;
  info.user = status->st_uid;
  info.bytes = static_cast<std::uint64_t>(status->st_size);
  const GuardedDescriptor file = open_ours(name);
  if (file.get() < 0) return info;
  info.kind = kind_of(name, file.get());
  info.owner_pid = claimant(file.get(), Role::owner);
  info.reader_pid = claimant(file.get(), Role::peer);
  info.lock_file = stored_lock_file(name, file.get());
  if (info.owner_pid != 0) {
    info.owner = SegmentInfo::Owner::alive;
  } else if (info.kind != SegmentInfo::Kind::wire) {
    info.owner = SegmentInfo::Owner::dead;
  }
  return info;
}

template <class Use>
void for_each_file(const fs::path& directory, Use&& use) {
  std::error_code error;
  fs::directory_iterator entry(directory, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) use(entry->path());
  if (const std::string limit = limit_on_open(error.value()); !limit.empty()) {
    throw SystemError(error.value(), fmt::format("cannot list {}{}", directory.string(), limit));
  }
}

std::string name_of(const fs::path& file) { return "/" + file.filename().string(); }

bool is_there(const std::string& name) { return status_of(name) || errno != ENOENT; }

// The native buffer of this /dev/shm, with its '/', whose lock file has this name and is this
// user's; else empty.
std::string buffer_of(const fs::path& lock_file, std::string_view suffix) {
  const std::string file = lock_file.filename().string();
  const std::string_view buffer = buffer_of_lock_file(file, suffix);
  struct stat status {};
  if (buffer.empty() || lstat(lock_file.c_str(), &status) != 0 || !ours(status)) return {};
  return fmt::format("/{}", buffer);
}

}  // namespace

// shm_open follows no link, and sets close-on-exec.
int open_at_once(const std::string& name) { return shm_open(name.c_str(), O_RDWR | O_NONBLOCK, 0); }

bool same_file(int a, int b) {
  struct stat of_a {};
  struct stat of_b {};
  return fstat(a, &of_a) == 0 && fstat(b, &of_b) == 0 && same(of_a, of_b);
}

// Without a descriptor: out of them, a name would seem to lead elsewhere for ever.
bool leads_to(const std::string& name, int fd) {
  struct stat now {};
  struct stat own {};
  return lstat(("/dev/shm" + name).c_str(), &now) == 0 && fstat(fd, &own) == 0 && same(now, own);
}

bool remove_name(const std::string& name) {
  if (shm_unlink(name.c_str()) == 0) return true;
  if (errno == ENOENT) return false;
  const int error = errno;
  throw SystemError(
      error, fmt::format("cannot remove /dev/shm{}, which a dead owner left: see whether it is a "
                         "mount point, or /dev/shm read-only or append-only",
                         name));
}

void remove_lock_file(const std::string& name, int fd) {
  const fs::path path = stored_lock_file(name, fd);
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0 || !ours(status)) return;
  // No identity yet: its owner died between the two.
  const auto file = read_at<FileLock::File>(fd, offsetof(ShmControl, lock_file));
  const bool is_it =
      file && (*file == FileLock::File{} || *file == FileLock::File{status.st_dev, status.st_ino});
  if (is_it) unlink(path.c_str());
}

bool reclaim(const std::string& name) {
  if (!name.starts_with(kOurPrefix)) return false;
  const GuardedDescriptor file = open_ours(name);
  if (file.get() < 0) return false;
  // An empty one too: who has just made it for itself finds that it lost its name, and starts
  // again.
  if (!try_claim_unnamed(file.get(), Role::owner, name)) return false;
  MOETAP_POINT("reclaim claimed");
  if (!leads_to(name, file.get())) return false;
  remove_lock_file(name, file.get());
  MOETAP_POINT("reclaim lock file removed");
  const bool removed = remove_name(name);
  MOETAP_POINT("reclaim unlinked");
  return removed;
}

// Nobody makes a lock file but for a segment that it has claimed and that has its name, so that of
// a name that leads nowhere is nobody's; and as long as the name is ours nobody makes another.
bool reclaim_lock_file(const fs::path& path) {
  const std::string buffer = buffer_of(path, lock_suffix());
  if (buffer.empty()) return false;
  const GuardedDescriptor file(
      [&] { return shm_open(buffer.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600); });
  if (file.get() < 0 || !try_claim_unnamed(file.get(), Role::owner, buffer) ||
      !leads_to(buffer, file.get())) {
    return false;
  }
  const bool removed = unlink(path.c_str()) == 0;
  const int error = errno;
  shm_unlink(buffer.c_str());
  if (!removed && error != ENOENT) {
    throw SystemError(error, fmt::format("cannot remove lock file {}, which no segment has: see "
                                         "whether its file system is read-only",
                                         path.string()));
  }
  return removed;
}

void remove_leftovers() {
  const auto if_possible = [](auto&& remove) {
    try {
      remove();
    } catch (const SystemError&) {
    }
  };
  for_each_file("/dev/shm",
                [&](const fs::path& file) { if_possible([&] { reclaim(name_of(file)); }); });
  for (const fs::path& file : find_lone_lock_files()) {
    if_possible([&] { reclaim_lock_file(file); });
  }
}

std::vector<fs::path> find_lone_lock_files() {
  std::vector<fs::path> found;
  const std::vector<fs::path> directories = lock_directories();
  if (directories.empty()) return found;
  const std::string suffix = lock_suffix();
  for (const fs::path& directory : directories) {
    for_each_file(directory, [&](const fs::path& file) {
      const std::string buffer = buffer_of(file, suffix);
      if (!buffer.empty() && !is_there(buffer)) found.push_back(file);
    });
  }
  std::ranges::sort(found);
  return found;
}

std::vector<SegmentInfo> find_segments() {
  std::vector<SegmentInfo> found;
  for_each_file("/dev/shm", [&](const fs::path& file) {
    const std::string name = name_of(file);
    if (!name.starts_with(kOurPrefix) && !name.starts_with(kWirePrefix)) return;
    if (auto info = describe(name)) found.push_back(std::move(*info));
  });
  std::ranges::sort(found, {}, &SegmentInfo::name);
  return found;
}

}  // namespace moetap
