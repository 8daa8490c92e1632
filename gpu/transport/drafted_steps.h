// What the worker's thread knows of steps with drafts, to refuse a wrong accept() at once.
#pragma once

#include <moetap/step.h>

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace moetap {

// Spans with declared drafts, by request, until accept(). One thread at a time.
class DraftedSteps {
 public:
  void add(const StepInfo& step);  // may be repeated

  // Where the request's span in `step` begins, and its accepted tokens in the order of their
  // positions. Nothing for a step without declared drafts of the request. Refuses what
  // Transport::accept refuses.
  struct Accepted {
    std::int64_t position = 0;
    std::span<const std::int64_t> tokens;
  };
  std::optional<Accepted> accepted(Step step, RequestId request, std::int64_t num_tokens,
                                   std::span<const std::int64_t> tokens) const;

  // Forgets the request's steps up to this one.
  void forget(Step step, RequestId request);
  void erase(RequestId request) { requests_.erase(request); }

 private:
  struct Drafted {
    Step step = 0;
    RequestSpan span;
  };
  const RequestSpan* find(Step step, RequestId request) const;

  std::unordered_map<RequestId, std::vector<Drafted>> requests_;
};

}  // namespace moetap
