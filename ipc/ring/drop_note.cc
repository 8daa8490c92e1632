#include "ipc/ring/drop_note.h"

namespace moetap {

// The order of the accesses is LeaseNote's.
void DropNote::write(const Drops& drops) noexcept {
  const std::uint64_t writing = version_.load(std::memory_order_relaxed) | 1;
  version_.store(writing, std::memory_order_relaxed);
  after_.store(drops.after, std::memory_order_release);
  first_.store(drops.run.first, std::memory_order_release);
  last_.store(drops.run.last, std::memory_order_release);
  total_.store(drops.run.total, std::memory_order_release);
  given_up_.store(drops.run.given_up, std::memory_order_release);
  version_.store(writing + 1, std::memory_order_release);
}

std::optional<DropNote::Drops> DropNote::read() const {
  constexpr int kTries = 1000;  // a write takes some tens of nanoseconds
  for (int i = 0; i < kTries; ++i) {
    const std::uint64_t before = version_.load(std::memory_order_acquire);
    Drops drops;
    drops.after = after_.load(std::memory_order_acquire);
    drops.run.first = first_.load(std::memory_order_acquire);
    drops.run.last = last_.load(std::memory_order_acquire);
    drops.run.total = total_.load(std::memory_order_acquire);
    drops.run.given_up = given_up_.load(std::memory_order_acquire);
    if (before % 2 == 0 && version_.load(std::memory_order_relaxed) == before) return drops;
  }
  return std::nullopt;
}

}  // namespace moetap
