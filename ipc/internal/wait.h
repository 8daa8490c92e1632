// Waiting for another process: spin for a bounded time, then sleep in a futex.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "lib/internal/export.h"

namespace moetap {

// A word in shared memory that a waker changes and a waiter watches. With `sleepers` the waker can
// skip the system call if no waiter sleeps.
struct WakeWord {
  std::atomic<std::uint32_t> value{0};
  std::atomic<std::uint32_t> sleepers{0};
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

// Changes the word and wakes all sleepers. Never blocks. Writes before this call are visible to a
// waiter that sees the change.
MOETAP_INTERNAL_API void wake(WakeWord& word) noexcept;

// The time `timeout` from now. Any timeout is allowed: a negative one means now, one over a year
// means a year.
inline std::chrono::steady_clock::time_point deadline_after(std::chrono::milliseconds timeout) {
  using std::chrono::milliseconds;
  return std::chrono::steady_clock::now() +
         std::clamp(timeout, milliseconds(0), milliseconds(std::chrono::hours(24 * 365)));
}

// How often a wait, or a poll that finds nothing, looks at what costs system calls: whether the
// other process lives, and whether shared memory still has its name.
inline constexpr std::chrono::milliseconds kLook{20};

// Says at most once every kLook that it is time for such a look.
class NowAndThen {
 public:
  bool is_due() {
    const auto now = std::chrono::steady_clock::now();
    if (now < next_) return false;
    next_ = now + kLook;
    return true;
  }

 private:
  std::chrono::steady_clock::time_point next_ = std::chrono::steady_clock::time_point::min();
};

// How long a waiter spins before it sleeps. A cache line crosses cores in about 0.2 us; a futex
// wake takes about 25 us. Spinning for about one wake costs at most twice the better choice.
inline constexpr std::chrono::microseconds kSpin{25};

// Returns true when ready() returns true, or false at the deadline. ready() may be called from a
// spin loop.
template <class Ready>
[[nodiscard]] bool wait_until(WakeWord& word, std::chrono::steady_clock::time_point deadline,
                              Ready&& ready, std::chrono::microseconds spin = kSpin);

namespace detail {
// Sleeps while word == seen, until woken, the deadline, or spuriously.
MOETAP_INTERNAL_API void sleep(WakeWord& word, std::uint32_t seen,
                               std::chrono::steady_clock::time_point deadline);
// Pauses between two checks of a waiter that has spun for so long.
MOETAP_INTERNAL_API void pause(std::chrono::microseconds spun = {});
}  // namespace detail

template <class Ready>
bool wait_until(WakeWord& word, std::chrono::steady_clock::time_point deadline, Ready&& ready,
                std::chrono::microseconds spin) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  for (auto spun = spin.zero(); spun < spin;
       spun = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start)) {
    if (ready()) return true;
    detail::pause(spun);
  }
  for (;;) {
    const std::uint32_t seen = word.value.load(std::memory_order_seq_cst);
    if (ready()) return true;
    if (Clock::now() >= deadline) return false;
    detail::sleep(word, seen, deadline);
  }
}

}  // namespace moetap
