#include "gpu/transport/drafted_steps.h"

#include <algorithm>

#include "lib/internal/accepted_tokens.h"

namespace moetap {

void DraftedSteps::add(const StepInfo& step) {
  for (const RequestSpan& span : step.requests) {
    if (span.num_drafts == 0) continue;
    std::vector<Drafted>& drafted = requests_[span.request];
    if (drafted.empty() || drafted.back().step != step.step) drafted.emplace_back();
    drafted.back() = {step.step, span};
  }
}

const RequestSpan* DraftedSteps::find(Step step, RequestId request) const {
  const auto drafted = requests_.find(request);
  if (drafted == requests_.end()) return nullptr;
  const auto found = std::ranges::find(drafted->second, step, &Drafted::step);
  return found == drafted->second.end() ? nullptr : &found->span;
}

void DraftedSteps::forget(Step step, RequestId request) {
  const auto drafted = requests_.find(request);
  if (drafted == requests_.end()) return;
  std::erase_if(drafted->second, [step](const Drafted& one) { return one.step <= step; });
}

std::optional<DraftedSteps::Accepted> DraftedSteps::accepted(
    Step step, RequestId request, std::int64_t num_tokens,
    std::span<const std::int64_t> tokens) const {
  const RequestSpan* span = find(step, request);
  if (span == nullptr) {
    detail::check_in_place(
        step, request, tokens,
        "the step has no drafts of the request that are not accepted yet; declare "
        "them in RequestSpan::num_drafts, and accept() each step once");
    return std::nullopt;
  }
  const TokenRange positions{span->position, span->position + span->count};
  const std::int64_t count = detail::count_standing(positions, num_tokens);
  detail::check_accepted(step, request, positions, positions.end - span->num_drafts, count, tokens);
  return Accepted{span->position, tokens.first(static_cast<std::size_t>(count))};
}

}  // namespace moetap
