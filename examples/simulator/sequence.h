// A request while it is served.
#pragma once

#include <cstdint>
#include <vector>

#include "examples/simulator/kv_cache.h"
#include "examples/simulator/plan.h"
#include "examples/simulator/trace.h"

namespace demo {

struct Sequence {
  RequestId id = 0;
  Request request;

  // The behaviour of its client.
  bool wants_rows = true;
  bool streams = false;          // asks for rows while the request runs
  std::int64_t abort_after = 0;  // steps since it was admitted; 0: never
  std::int64_t start = 0;        // has the rows before this one when it is admitted
  std::int64_t taken = 0;        // has the rows before this one by now

  enum class State { waiting, running, over };
  State state = State::waiting;
  Step admitted = 0;      // the step before its latest start; it may wait again since
  std::uint64_t run = 0;  // how often it was started; replies to steps of earlier runs are ignored

  std::vector<Token> tokens;      // prompt and what was sampled
  std::vector<BlockHash> hashes;  // of its full blocks

  // Of this run.
  std::vector<BlockId> blocks;
  bool told = false;               // the worker knows it
  std::int64_t cached_blocks = 0;  // of `blocks`: those that the cache knows by their hash
  std::int64_t prefill = 0;        // positions below are of tokens that were known at its start
  std::int64_t computed = 0;       // positions whose KV and tokens are final
  std::int64_t planned = 0;        // by all steps so far, if none of their drafts is rejected

  bool was_admitted() const { return run > 0; }
  bool decodes() const { return planned >= prefill; }
  std::int64_t num_tokens() const { return static_cast<std::int64_t>(tokens.size()); }

  // Fills in the prompt's tokens.
  void begin();
  // Extends `hashes` to all full blocks of tokens.
  void extend_hashes(int block_size);
};

// Token `position` of a request when it is finished, whatever happened to it on the way.
Token token_of(const Request& request, std::int64_t position);

}  // namespace demo
