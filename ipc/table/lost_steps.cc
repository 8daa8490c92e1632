#include "ipc/table/lost_steps.h"

#include <algorithm>

#include "lib/internal/injection.h"

namespace moetap {

// At any moment a reader without the writer's lock finds the evicted run either in its place or in
// `forgotten_`.
void LostSteps::add(Step first, Step last, Step before) {
  const std::uint64_t count = count_.load(std::memory_order_relaxed);
  if (count > 0) {
    Run& newest = runs_[(count - 1) % kRuns];
    if (newest.last.load(std::memory_order_relaxed) == before) {
      newest.last.store(last, std::memory_order_release);
      MOETAP_POINT("lose extended");
      return;
    }
  }
  Run& place = runs_[count % kRuns];
  if (count >= kRuns) forgotten_.store(place.last.load(), std::memory_order_release);
  place.first.store(first, std::memory_order_release);
  MOETAP_POINT("lose placing");
  place.last.store(last, std::memory_order_release);
  MOETAP_POINT("lose placed");
  count_.store(count + 1, std::memory_order_release);
  MOETAP_POINT("lose counted");
}

// Terminates whatever the memory contains.
Step LostSteps::last_in(const StepWindow& window) const {
  const std::uint64_t count = count_.load(std::memory_order_acquire);
  if (count == 0 || run(count - 1).last.load(std::memory_order_acquire) < window.first) return 0;
  const std::uint64_t oldest = count - std::min<std::uint64_t>(count, kRuns);
  std::uint64_t low = oldest;  // all runs below begin in the window or before it
  for (std::uint64_t high = count; low < high;) {
    const std::uint64_t middle = low + (high - low) / 2;
    if (run(middle).first.load(std::memory_order_acquire) <= window.last) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  const Step end = low == oldest ? forgotten_.load(std::memory_order_acquire)
                                 : run(low - 1).last.load(std::memory_order_acquire);
  const Step lost = std::min(window.last, end);
  return lost >= window.first ? lost : 0;
}

}  // namespace moetap
