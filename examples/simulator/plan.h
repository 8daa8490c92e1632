// What a worker runs in one step.
#pragma once

#include <moetap/types.h>

#include <cstdint>
#include <vector>

#include "examples/simulator/token.h"

namespace demo {

using moetap::BlockId;
using moetap::RequestId;
using moetap::Slot;
using moetap::Step;

enum class SpanKind : std::uint32_t {
  prefill,       // known tokens
  last_prefill,  // known tokens, and one is sampled after them
  decode,        // the last sampled token and count - 1 drafts, which only the worker knows
};

// `count` tokens of one request from `position` on. For a decode the scheduler knows only the
// highest possible position, as earlier steps may be in flight.
struct PlanSpan {
  RequestId request;
  std::uint64_t seed;
  std::int64_t position;
  std::int64_t count;
  std::int64_t new_blocks;  // of the plan's blocks, which the request gets after those it has
  SpanKind kind;
  std::uint32_t starts;  // 1: the request starts or restarts with these blocks

  bool samples() const { return kind != SpanKind::prefill; }
};

struct PlanEnd {
  RequestId request;
  std::uint64_t how;  // moetap::RequestEnd
};

struct StepPlan {
  Step step = 0;
  std::vector<PlanEnd> ended;  // since the previous step
  std::vector<PlanSpan> spans;
  std::vector<BlockId> blocks;             // span by span
  std::vector<moetap::TokenRange> wanted;  // tokens of the step whose rows are wanted
  std::vector<Token> tokens;               // of the prefills, span by span
  std::int64_t num_tokens = 0;             // of all spans

  bool empty() const { return spans.empty(); }
};

}  // namespace demo
