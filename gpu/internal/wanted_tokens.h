// The tokens of the open step whose rows are wanted.
#pragma once

#include <moetap/step.h>
#include <moetap/types.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace moetap {

// Keeps StepInfo::wanted while the step is open. Only the constructor allocates.
class WantedTokens {
 public:
  explicit WantedTokens(std::int64_t max_tokens) {
    ranges_.reserve(static_cast<std::size_t>(max_tokens));
  }

  void set(const StepInfo& step);

  bool all() const { return all_; }              // every token of the step is wanted
  std::int64_t count() const { return count_; }  // of the wanted ones

  static std::size_t list_bytes(std::int64_t tokens) {
    return static_cast<std::size_t>(tokens) * sizeof(std::uint32_t);
  }

  // Sets to[i] to the i-th wanted token. Not for a step of which all tokens are wanted.
  void list(std::uint32_t* to) const;

 private:
  bool all_ = true;
  std::int64_t count_ = 0;
  std::vector<TokenRange> ranges_;
};

// The wanted tokens of a request's span.
struct WantedSpan {
  RequestSpan span;
  TokenRange tokens;  // within the span, from 0

  RequestSpan part() const { return {span.request, span.position + tokens.start, tokens.size()}; }
};

// The wanted parts of step.requests, in the order of the rows in the step's record.
void assign_wanted_spans(const StepInfo& step, std::vector<WantedSpan>& spans);

}  // namespace moetap
