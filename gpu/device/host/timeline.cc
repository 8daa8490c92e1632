#include "gpu/device/host/timeline.h"

namespace moetap::host {

// Registers the waiter first and then checks the count; advance() counts first and then checks for
// waiters. So one of the two sees the other.
bool Timeline::done_or_register(std::uint64_t count) {
  if (done() >= count) return true;
  std::uint64_t least = wake_at_.load(std::memory_order_seq_cst);
  while (count < least && !wake_at_.compare_exchange_weak(least, count)) {
  }
  return done_.load(std::memory_order_seq_cst) >= count;
}

void Timeline::wait(std::uint64_t count) {
  (void)wait_until(
      word_, std::chrono::steady_clock::time_point::max(), [&] { return done_or_register(count); },
      kDeviceSpin);
}

}  // namespace moetap::host
