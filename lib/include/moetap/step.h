// What an engine tells a Capturer about a step.
#pragma once

#include <moetap/types.h>

#include <cstdint>
#include <optional>
#include <span>

namespace moetap {

// Which tokens' rows topk_ids has, under data parallelism.
enum class RankLayout : std::uint8_t {
  local,         // this rank's tokens: num_tokens or padded_tokens rows
  concatenated,  // every rank's real tokens, rank after rank: sum(dp_tokens) rows
  padded,        // every rank's, padded to padded_tokens each: dp_size * padded_tokens rows
};

// A run of the step's tokens that belongs to one request: positions [position, position + count).
//
// Where drafts may form a tree (see Drafts), declare them: the last `num_drafts` tokens of the
// span. They have no rows until Capturer::accept() says which were accepted. The request's next
// span begins where the accepted tokens end. If that is below the end of a span without declared
// drafts, only the first token of that span is known to be accepted, and the others have no rows.
struct RequestSpan {
  RequestId request = 0;
  std::int64_t position = 0;
  std::int64_t count = 0;
  std::int64_t num_drafts = 0;  // below count: the first token is no draft
};

// One step. The spans need to live only as long as the call they are passed to.
struct StepInfo {
  Step step = 0;                              // greater than every earlier step's
  std::int64_t num_tokens = 0;                // real tokens of this rank
  std::int64_t padded_tokens = 0;             // rows including graph padding; 0: num_tokens
  std::span<const std::int64_t> dp_tokens{};  // concatenated layout: real tokens of each rank
  std::span<const RequestSpan> requests{};    // all tokens in order; for HostCache::per_request
  // Tokens whose rows are wanted: ascending, disjoint, non-empty ranges of [0, num_tokens).
  // nullopt: all tokens. Other tokens' rows are neither copied nor stored; their slots keep their
  // rows and stamps. So a token that was wanted must be wanted again when it is recomputed in the
  // same block. This is the case if each request wants all its rows, or all from a position on. All
  // tokens are captured alike: an invalid expert id fails the step, whether its token is wanted or
  // not.
  //
  // An empty list: no rows are wanted. publish() then closes the step and does nothing else. The
  // step has no outcome, finalize() does not wait for it, and the reader is not told of it. A layer
  // that was not captured goes unnoticed, as there is no row that could lack it.
  std::optional<std::span<const TokenRange>> wanted{};
};

// Why the worker no longer needs a request's rows.
enum class RequestEnd : std::uint8_t {
  finished,   // hand over the captured rows
  preempted,  // discard them: the request will be computed again
  aborted,    // discard them
};

// Steps that a worker closed without their rows, which are missing. Either the ring was full: at
// once (OnFull::drop), or until the timeout. Or the engine gave the step up for another reason. If
// several ranks are read as one, the counts are sums over them: a step that two of them dropped
// counts twice.
struct DroppedSteps {
  std::uint64_t count = 0;
  Step last = 0;               // the last such step; 0: none
  std::uint64_t given_up = 0;  // those that the engine gave up, e.g. when its forward pass threw
};

}  // namespace moetap
