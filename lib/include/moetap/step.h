// What an engine tells a Capturer about a step.
#pragma once

#include <moetap/types.h>

#include <cstdint>
#include <optional>
#include <span>

namespace moetap {

// Which tokens the rows of topk_ids are, under data parallelism.
enum class RankLayout : std::uint8_t {
  local,         // this rank's: num_tokens or padded_tokens rows
  concatenated,  // every rank's real tokens, rank after rank: sum(dp_tokens) rows
  padded,        // every rank's, each padded to padded_tokens: dp_size * padded_tokens rows
};

// A run of the step's tokens that belongs to one request: positions [position, position + count).
// Not of drafts that form a tree, whose positions nobody knows yet.
struct RequestSpan {
  std::uint64_t request = 0;
  std::int64_t position = 0;
  std::int64_t count = 0;
};

// One step. The spans need to live only as long as the call they are passed to.
struct StepInfo {
  Step step = 0;                              // above every earlier one
  std::int64_t num_tokens = 0;                // real tokens of this rank
  std::int64_t padded_tokens = 0;             // rows of this rank with graph padding; 0: num_tokens
  std::span<const std::int64_t> dp_tokens{};  // concatenated layout: real tokens of each rank
  std::span<const RequestSpan> requests{};    // the tokens in order; only a per-request host cache
                                              // needs them
  // Tokens whose rows somebody wants: ascending, disjoint, non-empty ranges of [0, num_tokens).
  // Other tokens' rows are neither copied nor stored, and their slots keep the rows and stamps they
  // had. So a token that was wanted must be wanted again when it is computed again in the same
  // block, which is so if requests ask as a whole or from a position on. All tokens are captured
  // alike: an id that is no expert's fails the step whoever's it is. nullopt: all are wanted.
  //
  // An empty list: nobody wants anything. publish() then closes the step and does nothing else: it
  // has no outcome (a layer that was not captured goes unnoticed, with no row for it to be missing
  // from), finalize() does not wait for it, and the reader never hears of it.
  std::optional<std::span<const TokenRange>> wanted{};
};

// Why a request's rows are no longer needed by the worker.
enum class RequestEnd : std::uint8_t {
  finished,   // hand over what was captured
  preempted,  // forget it: the request will be computed again
  aborted,    // forget it
};

// Steps that a worker closed without their rows, which are missing: it gave them up, or the
// scheduler did not take steps in and the worker was told not to wait for it (OnFull::drop).
struct DroppedSteps {
  std::uint64_t count = 0;
  Step last = 0;               // of them; 0: none
  std::uint64_t given_up = 0;  // of them by the engine, as when its forward pass threw
};

}  // namespace moetap
