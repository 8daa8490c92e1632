// Steps whose rows never came, where nobody knows which slots they wrote.
#pragma once

#include <moetap/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace moetap {

// Lies in shared or private memory; zeros are an empty one. One writer. Runs of steps are added in
// ascending order.
class LostSteps {
 public:
  // Runs that are remembered one by one. All steps up to the end of an older one count as lost: no
  // row before it is taken for one that nothing has overwritten.
  static constexpr std::size_t kRuns = 1024;

  // The steps from `first` to `last`, which come after `before`, the last step that there was. If
  // that was lost too, the run that ended with it goes on, and has the steps in between.
  void add(Step first, Step last, Step before);

  bool any() const { return count_.load(std::memory_order_acquire) > 0; }

  // The last lost step that lies in the window, 0 if none does. A row that is older is no row of a
  // slot's present owner: the lost step may have written that slot.
  Step last_in(const StepWindow& window) const;

 private:
  struct Run {
    std::atomic<Step> first{0};
    std::atomic<Step> last{0};
  };
  const Run& run(std::uint64_t number) const { return runs_[number % kRuns]; }

  std::atomic<std::uint64_t> count_{0};  // of runs, ever
  std::atomic<Step> forgotten_{0};       // the end of the last run that is not remembered
  Run runs_[kRuns];                      // number n at n % kRuns
};
static_assert(std::atomic<Step>::is_always_lock_free);

}  // namespace moetap
