// The longest times that a buffer's lock was waited for and kept (H24).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <utility>

#include "ipc/internal/shm_writer.h"

namespace moetap {

// In the control block; all processes update it. Nanoseconds.
struct LongestTimes {
  struct Side {
    std::atomic<std::uint64_t> wait{0};
    std::atomic<std::uint64_t> hold{0};
  };
  Side writer;
  Side readers;

  LockTimes read() const {
    const auto time = [](const std::atomic<std::uint64_t>& longest) {
      return std::chrono::nanoseconds(longest.load(std::memory_order_relaxed));
    };
    return {time(writer.wait), time(writer.hold), time(readers.wait), time(readers.hold)};
  }
};

// Takes a lock with take() and keeps it during this object's lifetime.
template <class Lock>
class TimedHold {
 public:
  template <class Take>
  TimedHold(LongestTimes::Side& side, Take&& take)
      : asked_(Clock::now()), lock_(take()), had_(Clock::now()), side_(side) {
    note(side_.wait, had_ - asked_);
  }
  TimedHold(const TimedHold&) = delete;
  TimedHold& operator=(const TimedHold&) = delete;
  ~TimedHold() { note(side_.hold, Clock::now() - had_); }

 private:
  using Clock = std::chrono::steady_clock;

  static void note(std::atomic<std::uint64_t>& longest, Clock::duration time) {
    const auto ns = static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(time).count());
    std::uint64_t seen = longest.load(std::memory_order_relaxed);
    while (ns > seen && !longest.compare_exchange_weak(seen, ns, std::memory_order_relaxed)) {
    }
  }

  Clock::time_point asked_;
  Lock lock_;
  Clock::time_point had_;
  LongestTimes::Side& side_;
};
template <class Take>
TimedHold(LongestTimes::Side&, Take&&) -> TimedHold<decltype(std::declval<Take>()())>;

}  // namespace moetap
