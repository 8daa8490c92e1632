// The worker's record of its requests: turns a plan into the tokens, positions and slots that the
// model runs, and samples from the results. The scheduler plans ahead of the sampled tokens, so
// only the worker knows a decoding request's position. Independent of devices.
#pragma once

#include <moetap/step.h>
#include <moetap/types.h>

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "examples/simulator/protocol.h"

namespace demo {

class Batch {
 public:
  Batch(int block_size, double reject_rate) : block_size_(block_size), reject_rate_(reject_rate) {}

  // Removes requests that ended, and lays out the step. moetap::MismatchError for a plan that
  // contradicts what was run so far.
  void begin(const PlanView& plan);

  // One per token of the step.
  std::span<const Token> tokens() const { return tokens_; }
  std::span<const std::int32_t> positions() const { return positions_; }
  std::span<const Slot> slots() const { return slots_; }
  std::span<const moetap::RequestSpan> requests() const { return requests_; }

  // The sampled tokens: the proposed ones up to the first that the model would not have sampled,
  // and the token that it samples there. For each span that samples, their number; and all tokens.
  void sample(const PlanView& plan);
  std::span<const std::int32_t> counts() const { return counts_; }
  std::span<const Token> sampled() const { return sampled_; }

 private:
  struct Request {
    std::vector<BlockId> blocks;
    std::int64_t next = 0;  // position to run
    Token last = 0;         // that was sampled for it
  };

  void lay_out(const PlanSpan& span, Request& request, std::span<const Token> known);

  int block_size_;
  double reject_rate_;
  std::unordered_map<RequestId, Request> running_;
  std::vector<Token> tokens_;
  std::vector<std::int32_t> positions_;
  std::vector<Slot> slots_;
  std::vector<moetap::RequestSpan> requests_;
  std::vector<std::int32_t> counts_;
  std::vector<Token> sampled_;
};

}  // namespace demo
