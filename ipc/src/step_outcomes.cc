#include "step_outcomes.h"

#include <moetap/error.h>

#include <fmt/format.h>

#include <utility>

namespace moetap {

void StepOutcomes::require_next(Step step, const std::string& channel) const {
  if (step > last_) return;
  throw MismatchError(
      fmt::format("{} holds step {} after step {}, but steps only go up: its memory was "
                  "overwritten, restart both ends",
                  channel, step, last_));
}

void StepOutcomes::failed(Step step, std::string reason) {
  failures_[next_] = {step, std::move(reason)};
  next_ = (next_ + 1) % kFailures;
  last_ = step;
}

void StepOutcomes::require_success(Step step) const {
  if (step == 0) return;
  for (const Failure& failure : failures_) {
    if (failure.step == step) throw StepFailed(step, failure.reason);
  }
}

}  // namespace moetap
