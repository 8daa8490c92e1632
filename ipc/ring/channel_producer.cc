#include <moetap/error.h>

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include "ipc/internal/channel.h"
#include "ipc/internal/names.h"
#include "ipc/internal/ring.h"
#include "ipc/internal/segment.h"
#include "ipc/internal/wait.h"
#include "ipc/system/fork_guard.h"
#include "lib/internal/export.h"
#include "lib/internal/injection.h"

namespace moetap {
namespace {

[[noreturn]] void end(const char* why) noexcept {
  std::fprintf(stderr, "moetap: ChannelProducer::%s\n", why);
  std::abort();
}

}  // namespace

using Clock = std::chrono::steady_clock;

struct MOETAP_HIDDEN ChannelProducer::State {
  explicit State(const Endpoint& to)
      : endpoint((to.validate_ring(), to)),
        segment(Segment::create(ring_name(to), Ring::bytes(to), to.huge_pages)),
        ring(segment.bytes(), to),
        dropped_before(ring.depth()) {
    new (&ring.control()) RingControl;
    ring.control().head.publish(to, kRingMagic, kRingVersion);
    MOETAP_POINT("create published");
  }

  // The number of records that are not free. MismatchError if the consumer's counter is out of
  // bounds: shared memory is not trusted to decide what may be overwritten.
  std::uint64_t taken() const {
    const std::uint64_t released = ring.control().released.load(std::memory_order_acquire);
    const std::uint64_t mine = acquired.load(std::memory_order_relaxed);
    if (released > committed.load(std::memory_order_acquire) || mine - released > ring.depth()) {
      throw MismatchError(fmt::format(
          "{}: the scheduler's end released {} records of {} that were handed over: its memory was "
          "overwritten, restart both ends",
          segment.name(), released, committed.load()));
    }
    return mine - released;
  }

  [[noreturn]] void throw_full(Milliseconds timeout) const;
  std::string describe_reader() const;

  const Endpoint endpoint;
  Segment segment;
  Ring ring;
  Maker maker;
  // The producer's own copies, which no other process can write. Atomic because acquire() and
  // commit() may be called from two threads.
  std::atomic<std::uint64_t> acquired{0};
  std::atomic<std::uint64_t> committed{0};
  // The drops before each record, by index, and those after the last acquired record. Used by
  // acquire()'s thread.
  std::vector<DropRun> dropped_before;
  DropRun dropped;
  Step last_dropped = 0;
  NowAndThen look;  // in acquire()'s thread
};

std::string ChannelProducer::State::describe_reader() const {
  const pid_t reader = segment.peer_pid();
  if (reader == 0) {
    return "not there. Start a reader, which takes in what waits; until one is there, later steps "
           "do not wait for it";
  }
  const std::string lent = ring.control().lent.describe();
  constexpr std::string_view kRemedy =
      "Let the scheduler read every step, or raise ring_depth or timeout of the endpoint";
  if (lent.empty()) return fmt::format("process {}. {}", reader, kRemedy);
  return fmt::format(
      "process {}, which takes no records in while it lends rows: {}. detach() views that are "
      "kept. {}",
      reader, lent, kRemedy);
}

void ChannelProducer::State::throw_full(Milliseconds timeout) const {
  const std::uint64_t released = ring.control().released.load(std::memory_order_acquire);
  const std::uint64_t waiting = committed.load(std::memory_order_acquire) - released;
  const std::string oldest =
      waiting == 0 ? std::string("none") : std::to_string(ring.descriptor(released).step.value());
  throw TimeoutError(fmt::format(
      "waited {} ms for a free record in {}: of its {} records {} wait for the scheduler, the "
      "oldest is of step {}; its reader is {}",
      timeout.count(), segment.name(), ring.depth(), waiting, oldest, describe_reader()));
}

ChannelProducer::ChannelProducer(const Endpoint& endpoint)
    : state_(std::make_unique<State>(endpoint)) {}
ChannelProducer::~ChannelProducer() = default;

std::span<std::byte> ChannelProducer::memory() const { return state_->segment.bytes(); }

std::span<std::byte> ChannelProducer::acquire() { return acquire(state_->endpoint.timeout); }

std::span<std::byte> ChannelProducer::acquire(Milliseconds timeout) {
  State& s = *state_;
  s.maker.require("the ChannelProducer of ", s.segment.name());
  if (s.look.is_due()) s.segment.require_name();
  const auto has_room = [&s] {
    return MOETAP_OFF("H14 a full ring") || s.taken() < s.ring.depth();
  };
  if (!wait_until(s.ring.control().freed, deadline_after(timeout), has_room)) {
    s.throw_full(timeout);
  }
  const std::uint64_t number = s.acquired.load(std::memory_order_relaxed);
  s.dropped_before[number % s.ring.depth()] =
      std::exchange(s.dropped, {0, 0, s.dropped.total, s.dropped.given_up});
  s.acquired.store(number + 1, std::memory_order_release);
  s.ring.mark(number).begin(number);
  MOETAP_POINT("hand-over acquired");
  return s.ring.record(number);
}

void ChannelProducer::give_back() noexcept {
  State& s = *state_;
  const std::uint64_t number = s.acquired.load(std::memory_order_relaxed) - 1;
  if (number + 1 == s.committed.load(std::memory_order_acquire)) {
    end("give_back() without acquire()");
  }
  s.dropped = s.dropped_before[number % s.ring.depth()];
  s.acquired.store(number, std::memory_order_release);
}

bool ChannelProducer::has_room() {
  if (state_->taken() < state_->ring.depth()) return true;
  if (state_->look.is_due()) state_->segment.require_name();
  return false;
}

bool ChannelProducer::has_reader() const { return state_->segment.peer_pid() != 0; }

void ChannelProducer::drop(const DropRun& steps) noexcept {
  State& s = *state_;
  if (!s.maker.is_this_process()) end("drop() in a forked child of the process that made it");
  if (s.dropped.first == 0) s.dropped.first = steps.first;
  s.dropped.last = s.last_dropped = steps.last;
  s.dropped.total += steps.total;
  s.dropped.given_up += steps.given_up;
  s.ring.control().drops.write({s.acquired.load(std::memory_order_relaxed), s.dropped});
  wake(s.ring.control().published);
}

DroppedSteps ChannelProducer::dropped() const {
  return {state_->dropped.total, state_->last_dropped, state_->dropped.given_up};
}

void ChannelProducer::commit(const Descriptor& descriptor) noexcept {
  State& s = *state_;
  const std::uint64_t number = s.committed.load(std::memory_order_relaxed);
  // Continuing would hand over, or overwrite, a record that the scheduler may be reading.
  if (number >= s.acquired.load(std::memory_order_acquire)) end("commit() without acquire()");
  if (!s.maker.is_this_process()) end("commit() in a forked child of the process that made it");
  Descriptor& to = s.ring.descriptor(number);
  to = descriptor;
  to.dropped = s.dropped_before[number % s.ring.depth()];
  MOETAP_POINT("hand-over described");
  s.ring.mark(number).finish(number);
  MOETAP_POINT("hand-over finished");
  s.committed.store(number + 1, std::memory_order_release);
  s.ring.control().committed.store(number + 1, std::memory_order_release);
  MOETAP_POINT("hand-over committed");
  wake(s.ring.control().published);  // the consumer, and wait_committed()
}

void ChannelProducer::wait_committed(Milliseconds timeout) {
  State& s = *state_;
  const std::uint64_t acquired = s.acquired.load(std::memory_order_relaxed);
  const auto done = [&] { return s.committed.load(std::memory_order_acquire) == acquired; };
  if (!wait_until(s.ring.control().published, deadline_after(timeout), done)) {
    throw TimeoutError(
        fmt::format("waited {} ms until record {} of {} was filled, but only {} are: the device's "
                    "copies have not finished, is their stream waiting for something?",
                    timeout.count(), acquired, s.segment.name(), s.committed.load()));
  }
}

}  // namespace moetap
