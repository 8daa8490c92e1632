// Steps whose rows never arrived, and whose slots are not known.
#pragma once

#include <moetap/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace moetap {

// In shared or private memory; zeros are an empty object. One writer. Runs of steps are added in
// ascending order.
class LostSteps {
 public:
  // The number of runs that are remembered individually. All steps up to the end of an older run
  // count as lost: rows before it may have been overwritten.
  static constexpr std::size_t kRuns = 1024;

  // Adds the steps from `first` to `last`. `before` is the last step before them. If it was lost
  // too, its run is extended, and includes the steps in between.
  void add(Step first, Step last, Step before);

  bool any() const { return count_.load(std::memory_order_acquire) > 0; }

  // The last lost step in the window, or 0. An older row must not be taken for the present owner's:
  // the lost step may have written its slot.
  Step last_in(const StepWindow& window) const;

 private:
  struct Run {
    std::atomic<Step> first{0};
    std::atomic<Step> last{0};
  };
  const Run& run(std::uint64_t number) const { return runs_[number % kRuns]; }

  std::atomic<std::uint64_t> count_{0};  // runs ever added
  std::atomic<Step> forgotten_{0};       // the end of the last run that is not remembered
  Run runs_[kRuns];                      // number n at n % kRuns
};
static_assert(std::atomic<Step>::is_always_lock_free);

}  // namespace moetap
