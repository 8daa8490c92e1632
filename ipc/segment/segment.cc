#include "ipc/internal/segment.h"

#include <moetap/error.h>

#include <boost/interprocess/mapped_region.hpp>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <ctime>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>

#include "ipc/internal/claim.h"
#include "ipc/internal/system_limits.h"
#include "ipc/segment/leftovers.h"
#include "ipc/segment/shm_file.h"
#include "ipc/segment/shm_space.h"
#include "ipc/system/fork_guard.h"
#include "ipc/system/huge_pages.h"
#include "lib/internal/injection.h"

namespace moetap {
namespace {

namespace bip = boost::interprocess;

// How long a claim may seem to have no living owner. It is unnamed for some microseconds while
// another process inspects or removes the segment. It has a dead process's pid until a child that
// was just being forked reaches its fork handler, which may take tens of milliseconds on a busy
// machine.
constexpr std::chrono::seconds kUnowned{1};

// Two changes of a file within a tick of its file system's clock (1 to 10 ms) have the same time.
constexpr std::int64_t kClockTick = 50'000'000;

std::int64_t nanoseconds(const timespec& time) {
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// For Boost, which maps from the descriptor.
struct Mappable {
  int fd;
  bip::mapping_handle_t get_mapping_handle() const { return {fd, false}; }
};

std::unique_ptr<bip::mapped_region> map_whole(int fd, const std::string& name) {
  const auto bytes = static_cast<std::size_t>(file_status(fd, name).st_size);
  try {
    return std::make_unique<bip::mapped_region>(Mappable{fd}, bip::read_write);
  } catch (const bip::interprocess_exception& error) {
    const int code = error.get_native_error();
    throw SystemError(code, fmt::format("cannot map shared memory {}{}", name,
                                        limit_on_map(code, bytes, Mapped::shared)));
  }
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
  const auto deadline = std::chrono::steady_clock::now() + kUnowned;
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
    check_ours(file_status(fd, name), name);
    // Unnamed, so that readers do not take a dead owner's segment for one that this process
    // created.
    claim(fd, Role::owner, name, "owner", try_claim_unnamed);
    if (!leads_to(name, fd)) continue;
    MOETAP_POINT("create claimed");
    const auto status = file_status(fd, name);
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
      set_size(fd, name, bytes);
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
  const auto status = file_status(segment.fd_, name);
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
  named_since_ = 0;
  std::swap(region_, moved.region_);
  return *this;
}

Segment::~Segment() {
  // So that no process takes the removal below for one under a living owner.
  if (is_owner()) unname_claim(fd_, Role::owner);
  // Before the descriptor closes, which ends the claim: until then no other process can have
  // created a new segment of this name.
  if (unlinks_ && is_owner() && leads_to(name_, fd_)) {
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

bool Segment::has_name() const {
  struct stat file {};
  if (fstat(fd_, &file) != 0) return false;
  const std::int64_t changed = nanoseconds(file.st_ctim);
  if (file.st_nlink != 0 && changed == named_since_.load(std::memory_order_relaxed)) return true;
  if (!leads_to(name_, fd_)) return false;
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  const bool may_tell_changes = nanoseconds(now) - changed > kClockTick;
  named_since_.store(may_tell_changes ? changed : 0, std::memory_order_relaxed);
  return true;
}

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
