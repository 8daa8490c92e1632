#include "ipc/ring/step_outcomes.h"

#include <moetap/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "lib/internal/number_format.h"
#include "lib/internal/text.h"

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
  failed_steps_.push_back(step);
  if (failed_steps_.size() > kFailedSteps) {
    forgotten_ = std::max(forgotten_, failed_steps_.front());
    failed_steps_.pop_front();
  }
  last_ = step;
}

void StepOutcomes::dropped(const DropRun& run, const std::string& channel) {
  if (run.last == 0) return;
  const bool goes_on = !runs_.empty() && run.first == runs_.back().first;
  if (goes_on ? run.last < last_ : run.first <= last_) {
    throw MismatchError(
        fmt::format("{} says that {} had to be dropped, after step {}, but steps only go up: "
                    "its memory was overwritten, restart both ends",
                    channel, detail::step_range(run.first, run.last), last_));
  }
  if (goes_on) {
    runs_.back() = run;
  } else {
    runs_.push_back(run);
  }
  if (runs_.size() > kRuns) {
    forgotten_ = std::max(forgotten_, runs_.front().last);
    before_runs_ = runs_.front();
    runs_.pop_front();
  }
  last_ = run.last;
}

std::string StepOutcomes::why_dropped(const DropRun& run, const DropRun& before) {
  constexpr std::string_view kFull =
      "its ring was full, since the scheduler did not take steps in or the device was late (call "
      "poll() more often, or raise ring_depth)";
  constexpr std::string_view kGaveUp =
      "it gave it up, as when its forward pass or publish() threw: see its take_failures()";
  const std::uint64_t given_up = run.given_up - before.given_up;
  if (given_up == 0) return std::string(kFull);
  if (given_up == run.total - before.total) return std::string(kGaveUp);
  return fmt::format(
      "of the {} that it dropped one after the other it gave up {}, as when a forward pass or "
      "publish() threw (see its take_failures()); for the others {}",
      run.total - before.total, given_up, kFull);
}

void StepOutcomes::require_success(Step step) const {
  if (step == 0) return;
  for (const Failure& failure : failures_) {
    if (failure.step == step) throw StepFailed(step, failure.reason);
  }
  if (std::ranges::binary_search(failed_steps_, step)) {
    throw StepFailed(step, std::string(kReasonForgotten));
  }
  if (step <= forgotten_) throw StepFailed(step, std::string(kOutcomeForgotten));
  const auto after = std::ranges::upper_bound(runs_, step, {}, &DropRun::first);
  if (after == runs_.begin()) return;
  const auto run = std::prev(after);
  if (step > run->last) return;
  const DropRun& before = run == runs_.begin() ? before_runs_ : *std::prev(run);
  const std::string others =
      run->first == run->last
          ? std::string()
          : fmt::format(", among {}", detail::step_range(run->first, run->last));
  throw StepFailed(step,
                   fmt::format("the worker dropped it{}: {}", others, why_dropped(*run, before)));
}

}  // namespace moetap
