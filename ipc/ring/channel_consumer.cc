#include <moetap/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>

#include "ipc/internal/channel.h"
#include "ipc/internal/names.h"
#include "ipc/internal/ring.h"
#include "ipc/internal/segment.h"
#include "ipc/internal/wait.h"
#include "ipc/system/fork_guard.h"
#include "ipc/system/private_copy.h"
#include "lib/internal/export.h"
#include "lib/internal/injection.h"
#include "lib/internal/number_format.h"
#include "lib/internal/text.h"

namespace moetap {
namespace {

using Clock = std::chrono::steady_clock;

// Why dropped steps cannot come from our worker, or null.
const char* fault_of(const DropRun& run) {
  if (run.first == 0 && run.last == 0) return nullptr;
  if (run.first == 0 || run.first > run.last) return "its first step is not before its last";
  if (run.total == 0) return "there were none";
  if (run.given_up > run.total) return "more were given up";
  return nullptr;
}

// MismatchError for a descriptor that our producer cannot have written.
void check(const Descriptor& descriptor, const Endpoint& endpoint, const std::string& name) {
  using Kind = Descriptor::Kind;
  const auto require = [&](bool good, const char* field, auto value) {
    if (good) return;
    throw MismatchError(fmt::format(
        "{} holds a descriptor whose {} is {} (max_tokens is {}): its memory was overwritten, "
        "restart both ends",
        name, field, value, endpoint.max_tokens));
  };
  const Kind kind = descriptor.kind;
  require(kind <= Kind::step_done, "kind", static_cast<std::uint32_t>(kind));
  const bool of_step = kind == Kind::step || kind == Kind::failed_step || kind == Kind::step_done;
  require(!of_step || descriptor.step > 0, "step", descriptor.step);
  require(descriptor.num_tokens >= 0, "num_tokens", descriptor.num_tokens);
  require(kind == Kind::request_end || descriptor.num_tokens <= endpoint.max_tokens, "num_tokens",
          descriptor.num_tokens);
  require(
      descriptor.position >= 0 &&
          descriptor.position <= std::numeric_limits<std::int64_t>::max() - descriptor.num_tokens,
      "position", descriptor.position);
  const char* bad_run = fault_of(descriptor.dropped);
  require(bad_run == nullptr, "run of dropped steps", bad_run == nullptr ? "" : bad_run);
  require(descriptor.text[sizeof descriptor.text - 1] == '\0', "text", "not terminated");
}

}  // namespace

struct MOETAP_HIDDEN ChannelConsumer::State {
  explicit State(const Endpoint& from)
      : endpoint((from.validate_ring(), from)),
        segment(attach(ring_name(from), Ring::bytes(from), from, kRingMagic, kRingVersion)),
        ring(segment.bytes(), from) {
    MOETAP_POINT("attach opened");
    segment.claim_peer();  // before the counter is read: an earlier consumer has now stopped
    MOETAP_POINT("attach claimed");
    released = ring.control().released.load(std::memory_order_acquire);
    took_over = released != 0;
    ring.control().lent.write(0, {}, {});  // and its leases have ended
    wake(ring.control().freed);            // and may have died before it woke the worker
  }

  [[noreturn]] void throw_overwritten(const char* what) const {
    throw MismatchError(
        fmt::format("{}: record {} {}: its memory was overwritten, restart both ends",
                    segment.name(), released, what));
  }

  void require_maker() const { maker.require("the ChannelConsumer of ", segment.name()); }

  // The number of records that wait.
  std::uint64_t waiting() const {
    return ring.control().committed.load(std::memory_order_acquire) - released;
  }

  const Endpoint endpoint;
  Segment segment;
  Ring ring;
  Maker maker;
  std::uint64_t released = 0;  // own copy, which no other process can write
  bool took_over = false;
  NowAndThen look;
  Descriptor descriptor;
  std::optional<Item> item;
};

ChannelConsumer::ChannelConsumer(const Endpoint& endpoint)
    : state_(std::make_unique<State>(endpoint)) {}
ChannelConsumer::~ChannelConsumer() = default;

const ChannelConsumer::Item* ChannelConsumer::peek() {
  State& s = *state_;
  s.require_maker();
  if (s.item) return &*s.item;
  const std::uint64_t waiting = s.waiting();
  if (waiting == 0) {
    if (s.look.is_due()) s.segment.require_name();
    return nullptr;
  }
  if (waiting > s.ring.depth()) {
    throw MismatchError(fmt::format(
        "{} claims that {} records wait in it, it has {}: its memory was overwritten, restart both "
        "ends",
        s.segment.name(), waiting, s.ring.depth()));
  }
  if (!s.ring.mark(s.released).is_there(s.released)) {
    s.throw_overwritten("is not there, although the worker's counter says so");
  }
  s.descriptor = private_copy(s.ring.descriptor(s.released));
  MOETAP_POINT("read peeked");
  check(s.descriptor, s.endpoint, s.segment.name());
  return &s.item.emplace(Item{s.descriptor, s.ring.record(s.released)});
}

void ChannelConsumer::require_unchanged() const {
  const State& s = *state_;
  if (!s.ring.mark(s.released).was_there(s.released)) {
    s.throw_overwritten("was used again by the worker while it was read");
  }
}

void ChannelConsumer::release() {
  State& s = *state_;
  s.require_maker();
  if (!s.item) throw StateError("release() of a record that peek() did not return: call it first");
  s.item.reset();
  MOETAP_POINT("read taken in");
  s.ring.control().released.store(++s.released, std::memory_order_release);
  MOETAP_POINT("read released");
  wake(s.ring.control().freed);
}

DropRun ChannelConsumer::dropped() const {
  const State& s = *state_;
  const std::optional<DropNote::Drops> noted = s.ring.control().drops.read();
  // For another record than the next, which has its own.
  if (!noted || noted->after != s.released || s.waiting() != 0) return {};
  if (const char* bad = fault_of(noted->run); bad != nullptr) {
    throw MismatchError(
        fmt::format("{} says that {} had to be dropped, {} steps in all, but {}: its memory was "
                    "overwritten, restart both ends",
                    s.segment.name(), detail::step_range(noted->run.first, noted->run.last),
                    noted->run.total, bad));
  }
  return noted->run;
}

bool ChannelConsumer::wait(Milliseconds timeout, const DropRun& known) {
  State& s = *state_;
  const auto deadline = deadline_after(timeout);
  const auto ready = [&] {
    if (s.waiting() != 0) return true;
    const DropRun run = dropped();
    return run.last != 0 && run != known;
  };
  for (;;) {
    const auto poll = std::min(deadline, Clock::now() + kLook);
    if (wait_until(s.ring.control().published, poll, ready)) return true;
    // A producer may have published its last record just before it died.
    if (!producer_alive() || Clock::now() >= deadline) return ready();
  }
}

bool ChannelConsumer::took_over() const { return state_->took_over; }

bool ChannelConsumer::producer_alive() const {
  state_->segment.require_name();
  return state_->segment.owner_alive();
}

void ChannelConsumer::show_leases(std::size_t leases, std::string_view holder,
                                  Clock::time_point since) noexcept {
  // A child that ends may end copies of its parent's leases.
  if (state_->maker.is_this_process()) state_->ring.control().lent.write(leases, holder, since);
}

}  // namespace moetap
