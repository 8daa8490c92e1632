#include "gpu/internal/wanted_tokens.h"

#include <algorithm>
#include <numeric>

namespace moetap {

void WantedTokens::set(const StepInfo& step) {
  ranges_.clear();
  count_ = step.num_tokens;
  if (step.wanted) {
    count_ = 0;
    for (const TokenRange range : *step.wanted) count_ += range.size();
  }
  all_ = count_ == step.num_tokens;
  if (!all_) ranges_.assign(step.wanted->begin(), step.wanted->end());
}

void WantedTokens::list(std::uint32_t* to) const {
  for (const TokenRange range : ranges_) {
    std::iota(to, to + range.size(), static_cast<std::uint32_t>(range.start));
    to += range.size();
  }
}

void assign_wanted_spans(const StepInfo& step, std::vector<WantedSpan>& spans) {
  spans.clear();
  if (!step.wanted) {
    for (const RequestSpan& span : step.requests) spans.push_back({span, {0, span.count}});
    return;
  }
  auto wanted = step.wanted->begin();
  TokenRange tokens;  // of the current request
  for (const RequestSpan& span : step.requests) {
    tokens = {tokens.end, tokens.end + span.count};
    while (wanted != step.wanted->end() && wanted->start < tokens.end) {
      const std::int64_t start = std::max(tokens.start, wanted->start);
      const std::int64_t end = std::min(tokens.end, wanted->end);
      spans.push_back({span, {start - tokens.start, end - tokens.start}});
      if (wanted->end > tokens.end) break;  // the next request has the rest
      ++wanted;
    }
  }
}

}  // namespace moetap
