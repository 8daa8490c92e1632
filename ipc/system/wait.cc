
#include "ipc/internal/wait.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace moetap {
namespace {

// Several processes map the word, so the futex is not private.
long futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value,
           const timespec* deadline) {
  static_assert(sizeof(word) == sizeof(std::uint32_t));
  return syscall(SYS_futex, &word, operation, value, deadline, nullptr, FUTEX_BITSET_MATCH_ANY);
}

}  // namespace

// Sequentially consistent on both sides: either the waker sees the sleeper, or the kernel sees that
// the sleeper's value is outdated.
void wake(WakeWord& word) noexcept {
  word.value.fetch_add(1, std::memory_order_seq_cst);
  if (word.sleepers.load(std::memory_order_seq_cst) != 0) {
    futex(word.value, FUTEX_WAKE, INT_MAX, nullptr);
  }
}

namespace detail {

void sleep(WakeWord& word, std::uint32_t seen, std::chrono::steady_clock::time_point deadline) {
  using namespace std::chrono;
  // FUTEX_WAIT_BITSET takes an absolute time of CLOCK_MONOTONIC, which steady_clock is.
  const auto since_boot = deadline.time_since_epoch();
  const auto whole = duration_cast<seconds>(since_boot);
  const timespec until{static_cast<std::time_t>(whole.count()),
                       static_cast<long>(duration_cast<nanoseconds>(since_boot - whole).count())};
  word.sleepers.fetch_add(1, std::memory_order_seq_cst);
  // A wake, a changed word, a signal and the deadline are treated alike: the caller checks again.
  futex(word.value, FUTEX_WAIT_BITSET, seen, &until);
  word.sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

// After the first microsecond, yields the core between two checks. With more threads than cores,
// the awaited thread may need this core. On two cores this cuts work across two streams from 100 us
// to 5 us.
void pause(std::chrono::microseconds spun) {
  if (spun.count() > 0) {
    sched_yield();
    return;
  }
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

}  // namespace detail
}  // namespace moetap
