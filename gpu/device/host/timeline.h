// A stream's progress, for threads that wait for it.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>

#include "ipc/internal/wait.h"

namespace moetap::host {

// How long a stream's thread, and threads that wait for it, spin before they sleep. About twice the
// time of a futex wake, so that a step's launches, some microseconds apart, find the thread awake.
inline constexpr std::chrono::microseconds kDeviceSpin{50};

// Counts a stream's finished operations. One thread advances it, any thread waits. It outlives its
// stream for as long as an event or a queued wait refers to it.
class alignas(64) Timeline {
 public:
  std::uint64_t done() const { return done_.load(std::memory_order_acquire); }

  void advance() noexcept {
    const std::uint64_t now = done_.load(std::memory_order_relaxed) + 1;
    done_.store(now, std::memory_order_seq_cst);
    if (wake_at_.load(std::memory_order_seq_cst) > now) return;
    wake_at_.store(kNobody, std::memory_order_seq_cst);
    wake(word_);
  }

  void wait(std::uint64_t count);

 private:
  static constexpr std::uint64_t kNobody = std::numeric_limits<std::uint64_t>::max();

  bool done_or_register(std::uint64_t count);

  std::atomic<std::uint64_t> done_{0};
  // The lowest count that a waiter needs: earlier operations need no system call. A waiter
  // registers again if it was woken too early, or if another one waits for a lower count.
  std::atomic<std::uint64_t> wake_at_{kNobody};
  WakeWord word_;
};

// The point at which a timeline reaches `count`; by default always reached. An event is only this:
// record() takes the current end of the stream's queue. So an event has no state that the stream's
// work would have to write, and may be destroyed or recorded again at any time.
struct Point {
  std::shared_ptr<Timeline> timeline;
  std::uint64_t count = 0;

  bool reached() const { return timeline == nullptr || timeline->done() >= count; }
};

}  // namespace moetap::host
