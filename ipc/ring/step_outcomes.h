// The outcomes of steps that a reader knows.
#pragma once

#include <moetap/error.h>
#include <moetap/step.h>
#include <moetap/types.h>

#include <array>
#include <cstddef>
#include <deque>
#include <string>
#include <string_view>

#include "ipc/internal/channel.h"

namespace moetap {

// The reason given for steps that failed long ago.
inline constexpr std::string_view kReasonForgotten =
    "why is not known any more, since many steps have failed after it";
inline constexpr std::string_view kOutcomeForgotten =
    "or not, which is not known any more, since many steps have failed after it: its rows say "
    "whether they are there";

// The last step, the failures among the latest ones, and the steps that were dropped. Steps come in
// ascending order.
class StepOutcomes {
 public:
  // The numbers of failures that are remembered with and without their reasons. An older step
  // counts as failed, as its outcome is not known any more; its rows' states are still right.
  static constexpr std::size_t kFailures = 64;
  static constexpr std::size_t kFailedSteps = 4096;
  // The number of runs of dropped steps that are remembered. Older steps count as failed too.
  static constexpr std::size_t kRuns = 1024;

  Step last() const { return last_; }

  // MismatchError unless `step` is greater than the last one, as a worker's always is.
  void require_next(Step step, const std::string& channel) const;

  void succeeded(Step step) { last_ = step; }
  void failed(Step step, std::string reason);

  // Adds a run that begins after the last step, or extends the last run. MismatchError for any
  // other.
  void dropped(const DropRun& run, const std::string& channel);
  DroppedSteps dropped() const { return runs_.empty() ? DroppedSteps{} : of_all(); }
  DropRun last_run() const { return runs_.empty() ? DropRun{} : runs_.back(); }

  // StepFailed if this step failed or was dropped.
  void require_success(Step step) const;

 private:
  struct Failure {
    Step step = 0;
    std::string reason;
  };
  DroppedSteps of_all() const {
    return {runs_.back().total, runs_.back().last, runs_.back().given_up};
  }
  // What is true of every step of the run. Of one with both kinds, it is not known which are which.
  static std::string why_dropped(const DropRun& run, const DropRun& before);

  Step last_ = 0;
  std::array<Failure, kFailures> failures_;
  std::size_t next_ = 0;  // index of the oldest failure
  std::deque<Step> failed_steps_;
  std::deque<DropRun> runs_;
  DropRun before_runs_;  // the last that is not remembered
  Step forgotten_ = 0;   // the last failed or dropped step that is not remembered
};

}  // namespace moetap
