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
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <optional>
#include <system_error>
#include <utility>

#include "ipc/internal/claim.h"
#include "ipc/internal/native_layout.h"
#include "ipc/internal/ring.h"
#include "ipc/internal/system_limits.h"
#include "ipc/segment/shm_file.h"
#include "ipc/system/fork_guard.h"
#include "ipc/system/own_file.h"
#include "lib/internal/injection.h"

namespace moetap {
namespace {

// An empty result unless it is this user's plain file; other files are not even opened. SystemError
// when out of descriptors, as the owner cannot be found out then.
GuardedDescriptor open_ours(const std::string& name) {
  const auto named = named_status(name);
  if (!named || !is_own_file(*named)) return {};
  GuardedDescriptor file([&] { return open_at_once(name); });
  if (const int error = errno; file.get() < 0 && !limit_on_open(error).empty()) {
    throw SystemError(error,
                      fmt::format("cannot open shared memory {}{}", name, limit_on_open(error)));
  }
  struct stat opened {};
  if (file.get() < 0 || fstat(file.get(), &opened) != 0 || !is_own_file(opened)) return {};
  return file;
}

SegmentInfo::Kind kind_of(const std::string& name, int fd) {
  if (name.starts_with(kWirePrefix)) return SegmentInfo::Kind::wire;
  // At the start of each control block. Read, not mapped: a segment that shrinks meanwhile must not
  // kill this process.
  std::uint64_t magic = 0;
  if (pread(fd, &magic, sizeof magic, 0) != sizeof magic) return SegmentInfo::Kind::other;
  if (magic == kShmMagic) return SegmentInfo::Kind::shm;
  if (magic == kRingMagic) return SegmentInfo::Kind::ring;
  return SegmentInfo::Kind::other;
}

// Whether no process but this one has the file open or mapped, and only by this descriptor: the
// kernel grants a lease for writing only then (fcntl(2)). A process that opens the file meanwhile
// waits for two system calls. The signal for that is one that does nothing unless it is handled.
bool is_unused(int fd) {
  if (fcntl(fd, F_SETSIG, SIGURG) != 0 || fcntl(fd, F_SETLEASE, F_WRLCK) != 0) return false;
  MOETAP_POINT("reclaim leased");
  fcntl(fd, F_SETLEASE, F_UNLCK);
  return true;
}

// A vLLM process makes no claim and leaves no mark, but has the buffer open as long as it uses it.
bool may_be_vllms(int fd) {
  struct stat status {};
  const bool is_ours = fstat(fd, &status) == 0 && (status.st_mode & kMadeByUs) != 0;
  return !is_ours || !is_unused(fd);
}

// Nothing if it is gone.
std::optional<SegmentInfo> describe(const std::string& name) {
  SegmentInfo info{.name = name};
  const auto status = named_status(name);
  if (!status) return std::nullopt;
  info.user = status->st_uid;
  info.bytes = static_cast<std::uint64_t>(status->st_size);
  const GuardedDescriptor file = open_ours(name);
  if (file.get() < 0) return info;
  info.kind = kind_of(name, file.get());
  info.owner_pid = claimant(file.get(), Role::owner);
  info.reader_pid = claimant(file.get(), Role::peer);
  if (info.owner_pid != 0) {
    info.owner = SegmentInfo::Owner::alive;
  } else if (info.kind != SegmentInfo::Kind::wire || !may_be_vllms(file.get())) {
    info.owner = SegmentInfo::Owner::dead;
  }
  return info;
}

// Calls the function with the name of each file in /dev/shm.
template <class Use>
void for_each_name(Use&& use) {
  using std::filesystem::directory_iterator;
  std::error_code error;
  directory_iterator entry("/dev/shm", error);
  for (; !error && entry != directory_iterator(); entry.increment(error)) {
    use("/" + entry->path().filename().string());
  }
  if (const std::string limit = limit_on_open(error.value()); !limit.empty()) {
    throw SystemError(error.value(), fmt::format("cannot list /dev/shm{}", limit));
  }
}

}  // namespace

// shm_open does not follow links, and sets close-on-exec.
int open_at_once(const std::string& name) { return shm_open(name.c_str(), O_RDWR | O_NONBLOCK, 0); }

bool same_file(int a, int b) {
  struct stat of_a {};
  struct stat of_b {};
  return fstat(a, &of_a) == 0 && fstat(b, &of_b) == 0 && same_file(of_a, of_b);
}

// Uses no descriptor: with none left, the name would always seem to refer to another file.
bool leads_to(const std::string& name, int fd) {
  struct stat now {};
  struct stat own {};
  fmt::memory_buffer path;  // allocates nothing for names of up to 255 characters
  fmt::format_to(std::back_inserter(path), "/dev/shm{}", name);
  path.push_back('\0');
  return lstat(path.data(), &now) == 0 && fstat(fd, &own) == 0 && same_file(now, own);
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

bool reclaim(const std::string& name) {
  const bool is_wire = name.starts_with(kWirePrefix);
  if (!is_wire && !name.starts_with(kOurPrefix)) return false;
  const GuardedDescriptor file = open_ours(name);
  if (file.get() < 0) return false;
  // Empty ones too: a process that has just created it finds its name lost, and starts again.
  if (!try_claim_unnamed(file.get(), Role::owner, name)) return false;
  MOETAP_POINT("reclaim claimed");
  if (!leads_to(name, file.get()) || (is_wire && may_be_vllms(file.get()))) return false;
  const bool removed = remove_name(name);
  MOETAP_POINT("reclaim unlinked");
  return removed;
}

void remove_leftovers() {
  for_each_name([](const std::string& name) {
    try {
      reclaim(name);
    } catch (const SystemError&) {
    }
  });
}

std::vector<SegmentInfo> find_segments() {
  std::vector<SegmentInfo> found;
  for_each_name([&](const std::string& name) {
    if (!name.starts_with(kOurPrefix) && !name.starts_with(kWirePrefix)) return;
    if (auto info = describe(name)) found.push_back(std::move(*info));
  });
  std::ranges::sort(found, {}, &SegmentInfo::name);
  return found;
}

}  // namespace moetap
