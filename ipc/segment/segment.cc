#include "ipc/internal/segment.h"

#include <moetap/error.h>

#include <boost/interprocess/mapped_region.hpp>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <limits>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>

#include "ipc/internal/claim.h"
#include "ipc/internal/system_limits.h"
#include "ipc/segment/leftovers.h"
#include "ipc/system/fork_guard.h"
#include "ipc/system/huge_pages.h"
#include "lib/internal/injection.h"

namespace moetap {
namespace {

namespace bip = boost::interprocess;

// The kernel ignores the sticky bit here. It distinguishes segments that our processes created from
// those of vLLM.
constexpr mode_t kMadeByUs = S_ISVTX;
constexpr mode_t kMode = kMadeByUs | 0600;

// How long a claim may seem to have no living owner. It is unnamed for some microseconds while
// another process inspects or removes the segment. It has a dead process's pid until a child that
// was just being forked reaches its fork handler, which may take tens of milliseconds on a busy
// machine.
constexpr std::chrono::seconds kNobodys{1};

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

struct stat status_of(int fd, const std::string& name) {
  struct stat status {};
  if (fstat(fd, &status) != 0) {
    throw SystemError(errno, fmt::format("cannot examine shared memory {}", name));
  }
  return status;
}

const char* kind_of(mode_t mode) {
  if (S_ISLNK(mode)) return "a symbolic link, which is not followed";
  if (S_ISFIFO(mode)) return "a named pipe";
  if (S_ISDIR(mode)) return "a directory";
  return "a socket or a device";
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
        "shared memory {} has a lease on it (fcntl(2), F_SETLEASE), which none of ours has: see "
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

// Checked before it is opened, since open() would wait for another user's lease, or for a pipe's
// other end.
void check_named(const std::string& name) {
  struct stat status {};
  if (lstat(("/dev/shm" + name).c_str(), &status) == 0) check_ours(status, name);
}

int open_existing(const std::string& name) {
  check_named(name);
  return open_at_once(name);
}

int open_or_create(const std::string& name) {
  for (;;) {
    const int made = shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, kMode);
    if (made >= 0) {
      fchmod(made, kMode);  // whatever the umask is
      return made;
    }
    if (errno != EEXIST) return -1;
    const int found = open_existing(name);
    if (found >= 0 || errno != ENOENT) return found;
  }
}

// For Boost, which maps from the descriptor.
struct Mappable {
  int fd;
  bip::mapping_handle_t get_mapping_handle() const { return {fd, false}; }
};

std::unique_ptr<bip::mapped_region> map_whole(int fd, const std::string& name) {
  const auto bytes = static_cast<std::size_t>(status_of(fd, name).st_size);
  try {
    return std::make_unique<bip::mapped_region>(Mappable{fd}, bip::read_write);
  } catch (const bip::interprocess_exception& error) {
    const int code = error.get_native_error();
    throw SystemError(code, fmt::format("cannot map shared memory {}{}", name,
                                        limit_on_map(code, bytes, Mapped::shared)));
  }
}

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

void require_room(int fd, const std::string& name, std::size_t bytes) {
  require_file_size(bytes, fmt::format("shared memory {}", name));
  const std::size_t free = free_bytes(fd, name);
  const std::size_t held = static_cast<std::size_t>(status_of(fd, name).st_blocks) * 512;
  if (bytes > std::size_t{std::numeric_limits<off_t>::max()} ||
      (bytes > held && bytes - held > free)) {
    throw_no_room(name, ENOSPC, bytes, free);
  }
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

// Sets the size and backs every page now, so that no later access can fail for lack of space. A
// signal makes the kernel undo all pages of a call, so with one every millisecond a large call
// would never finish. So memory is reserved in pieces, and signals wait for the end of a piece.
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
  require(ftruncate(fd, static_cast<off_t>(bytes)) == 0 ? 0 : errno);
}

[[noreturn]] void throw_owned(const std::string& name, std::string_view who, pid_t pid) {
  throw OwnedError(
      fmt::format("shared memory {} has a living {}, {}: end it, or give this one another instance "
                  "name or rank",
                  name, who, pid != 0 ? fmt::format("process {}", pid) : "an unknown process"));
}

[[noreturn]] void throw_not_made_by_us(const std::string& name, std::size_t found,
                                       std::size_t bytes) {
  throw MismatchError(fmt::format(
      "shared memory {} has {} bytes, {} are needed, and another program made it: give both ends "
      "the same model and number of slots, or remove /dev/shm{} if that program is gone",
      name, found, bytes, name));
}

// Claims with try_claim() or try_claim_unnamed(). OwnedError if a living process has the role.
void claim(int fd, Role role, const std::string& name, std::string_view who,
           bool (*try_it)(int, Role, const std::string&)) {
  const auto deadline = std::chrono::steady_clock::now() + kNobodys;
  while (!try_it(fd, role, name)) {
    const pid_t pid = claimant(fd, role);  // 0: it died meanwhile, or its claim is unnamed
    const bool lives = pid != 0 && (kill(pid, 0) == 0 || errno != ESRCH);
    if (lives || std::chrono::steady_clock::now() >= deadline) throw_owned(name, who, pid);
    std::this_thread::yield();
  }
}

}  // namespace

Segment Segment::create(const std::string& name, std::size_t bytes, bool huge_pages) {
  if (huge_pages && bytes != 0) {
    require_huge_pages(name);
    bytes = in_whole_huge_pages(bytes);
  }
  return own(name, bytes, false, huge_pages);
}

Segment Segment::create_or_adopt(const std::string& name, std::size_t bytes) {
  return own(name, bytes, true, false);
}

// The owner of a name is the process with the claim to the segment that the name refers to. Any
// number of processes may run this at once. Only the process with that claim may remove or keep the
// segment; the others start again or find a living owner.
Segment Segment::own(const std::string& name, std::size_t bytes, bool adopt, bool huge_pages) {
  check_name(name);
  if (bytes == 0) throw ArgumentError(fmt::format("shared memory {} of 0 bytes", name));
  remove_leftovers();
  for (;;) {
    Segment segment;
    segment.name_ = name;
    segment.open_guarded(open_or_create);
    const int fd = segment.fd_;
    MOETAP_POINT("create opened");
    check_ours(status_of(fd, name), name);
    // Unnamed, so that readers do not take a dead owner's segment for one that this process
    // created.
    claim(fd, Role::owner, name, "owner", try_claim_unnamed);
    if (!leads_to(name, fd)) continue;
    MOETAP_POINT("create claimed");
    const auto status = status_of(fd, name);
    const auto found = static_cast<std::size_t>(status.st_size);
    segment.unlinks_ = !adopt || found == 0 || (status.st_mode & kMadeByUs) != 0;
    if (found != 0 && !(adopt && found == bytes)) {
      if (!segment.unlinks_) throw_not_made_by_us(name, found, bytes);
      // A dead owner's segment. It is not reused, since a reader may still have it mapped.
      MOETAP_POINT("create replaces");
      remove_name(name);
      continue;
    }
    claim(fd, Role::owner, name, "owner", try_claim);
    segment.owner_ = getpid();
    segment.adopted_ = found != 0;
    require_room(fd, name, bytes);
    if (huge_pages) {
      if (ftruncate(fd, static_cast<off_t>(bytes)) != 0)
        throw_no_room(name, errno, bytes, free_bytes(fd, name));
      if (!segment.map()) continue;
      back_with_huge_pages(segment.bytes(), name);
    }
    reserve(fd, name, bytes);
    MOETAP_POINT("create reserved");
    if (huge_pages) require_in_huge_pages(segment.bytes(), name);
    if (huge_pages || segment.map()) return segment;
  }
}

Segment Segment::open(const std::string& name) {
  for (;;) {
    Segment segment = find(name);
    if (segment.map()) return segment;
  }
}

Segment Segment::find(const std::string& name) {
  check_name(name);
  Segment segment;
  segment.name_ = name;
  segment.open_guarded(open_existing);
  const auto status = status_of(segment.fd_, name);
  check_ours(status, name);
  if (status.st_size == 0) {
    throw SystemError(ENOENT, fmt::format("shared memory {} is still being created", name));
  }
  return segment;
}

std::uint64_t Segment::first_word() const {
  std::uint64_t word = 0;
  const ssize_t got = pread(fd_, &word, sizeof word, 0);
  if (got < 0) throw SystemError(errno, fmt::format("cannot read shared memory {}", name_));
  return got == sizeof word ? word : 0;
}

void Segment::open_guarded(int (*open)(const std::string& name)) {
  GuardedDescriptor file([&] { return open(name_); });
  if (file.get() < 0) throw_open_error(name_, errno);
  fd_ = file.release();
}

// Maps from a separate open file description: a mapping keeps its description, and with it the
// locks, and a forked child inherits the mapping. Returns false if the name now refers to another
// segment.
bool Segment::map() {
  Segment other;
  other.name_ = name_;
  other.open_guarded(open_existing);
  if (!same_file(other.fd_, fd_)) return false;
  region_ = map_whole(other.fd_, name_);
  return true;
}

Segment::Segment() : made_in_(fork_generation()) {}

Segment::Segment(Segment&& other) noexcept
    : name_(std::move(other.name_)),
      made_in_(other.made_in_),
      owner_(std::exchange(other.owner_, 0)),
      peer_(std::exchange(other.peer_, 0)),
      unlinks_(std::exchange(other.unlinks_, false)),
      adopted_(other.adopted_),
      fd_(std::exchange(other.fd_, -1)),
      region_(std::move(other.region_)) {}

Segment& Segment::operator=(Segment&& other) noexcept {
  Segment moved(std::move(other));
  std::swap(name_, moved.name_);
  std::swap(made_in_, moved.made_in_);
  std::swap(owner_, moved.owner_);
  std::swap(peer_, moved.peer_);
  std::swap(unlinks_, moved.unlinks_);
  std::swap(adopted_, moved.adopted_);
  std::swap(fd_, moved.fd_);
  std::swap(region_, moved.region_);
  return *this;
}

Segment::~Segment() {
  // So that nobody takes the removal below for one under a living owner.
  if (is_owner()) unname_claim(fd_, Role::owner);
  // Before the descriptor closes, which ends the claim: until then no other process can have
  // created a new segment of this name.
  if (unlinks_ && owns_name()) {
    MOETAP_POINT("close");
    shm_unlink(name_.c_str());
    MOETAP_POINT("close unlinked");
  }
  if (fd_ >= 0) close_guarded(fd_);
}

std::span<std::byte> Segment::bytes() const {
  if (!region_) return {};
  return {static_cast<std::byte*>(region_->get_address()), region_->get_size()};
}

// The pid detects a child that was made without the C library's fork().
bool Segment::is_mine(pid_t role) const {
  return role != 0 && role == getpid() && made_in_ == fork_generation();
}

bool Segment::is_owner() const { return is_mine(owner_); }

bool Segment::has_name() const { return leads_to(name_, fd_); }

void Segment::require_name() const {
  if (has_name()) return;
  // Asked after the name: an owner that ends gives up its claim first.
  const pid_t owner = owner_pid();
  if (owner == 0) return;
  throw MismatchError(fmt::format(
      "shared memory {} was removed from /dev/shm, or another file put in its place, while its "
      "owner, process {}, lives: see what removes files there (a clean-up script; RemoveIPC= in "
      "logind.conf(5)), and restart both ends",
      name_, owner));
}

pid_t Segment::owner_pid() const { return is_owner() ? owner_ : claimant(fd_, Role::owner); }

void Segment::claim_peer() {
  claim(fd_, Role::peer, name_, "reader", try_claim);
  peer_ = getpid();
}

pid_t Segment::peer_pid() const { return is_mine(peer_) ? peer_ : claimant(fd_, Role::peer); }

}  // namespace moetap
