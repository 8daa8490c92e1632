// Decides what a worker runs in each step: continuous batching with chunked prefill over a paged KV
// cache. Knows neither processes nor devices.
#pragma once

#include <moetap/step.h>
#include <moetap/types.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kv_cache.h"
#include "trace.h"

namespace demo {

using moetap::Slot;

struct SchedulerOptions {
  std::int64_t num_blocks = 4096;
  int block_size = 16;
  std::int64_t max_tokens = 2048;  // of a step
  std::int64_t max_requests = 64;  // that run at the same time
};

// A request while it is served.
struct Sequence {
  std::uint64_t id = 0;
  Request request;
  std::vector<Token> tokens;      // prompt and what was sampled
  std::vector<BlockHash> hashes;  // of its full blocks
  std::vector<BlockId> blocks;
  std::int64_t computed = 0;       // positions whose KV (and routes) are in `blocks`
  std::int64_t cached_blocks = 0;  // of `blocks`, that the cache knows by their hash
  Step last_step = 0;              // that was planned for it

  std::int64_t pending() const { return static_cast<std::int64_t>(tokens.size()) - computed; }
};

// Positions [position, position + count) of one request in a step's tokens.
struct PlanSpan {
  std::uint64_t request;
  std::uint64_t seed;
  std::int64_t position;
  std::int64_t count;
  std::int64_t sample;  // 1: a token is sampled after the last one
};

struct PlanEnd {
  std::uint64_t request;
  std::uint64_t how;  // moetap::RequestEnd
};

struct StepPlan {
  Step step = 0;
  std::vector<PlanSpan> spans;
  std::vector<Token> tokens;
  std::vector<Slot> slots;     // one a token
  std::vector<PlanEnd> ended;  // since the previous step

  bool empty() const { return spans.empty(); }
};

struct SchedulerCounts {
  std::int64_t steps = 0;
  std::int64_t tokens = 0;             // run through the model, recomputed ones included
  std::int64_t prefix_hit_tokens = 0;  // not run because their blocks were there
  std::int64_t preemptions = 0;
};

// Requests wait in order. A step first takes one token of every request that is decoding, then
// chunks of prompts, oldest request first, then admits waiting ones. When blocks run out, the
// latest request is preempted: it gives up its blocks and is computed again, sampled tokens too.
class Scheduler {
 public:
  Scheduler(const SchedulerOptions& options, std::vector<Request> requests);

  // Requests that can never fit, as "name: why". They are not served.
  const std::vector<std::string>& rejected() const { return rejected_; }
  const SchedulerCounts& counts() const { return counts_; }
  const KvCache& cache() const { return cache_; }
  const SchedulerOptions& options() const { return options_; }

  // Nothing is left to run (finished requests may still have to be released).
  bool done() const { return waiting_.empty() && running_.empty(); }

  // What to run as `step`; valid until the next call. Empty only when blocks are short while
  // finished requests still hold some: release() those first.
  const StepPlan& plan(Step step);

  // The planned step ran; `sampled` has a token for each span with `sample`.
  // moetap::ArgumentError if their number differs.
  void complete(std::span<const Token> sampled);

  // Requests that are finished and still hold their blocks, so that their rows can be read.
  std::deque<std::unique_ptr<Sequence>>& finished() { return finished_; }

  // Gives up the oldest finished request's blocks, and forgets it.
  void release_finished();

 private:
  void reject_or_enqueue(Request request);
  void plan_decodes();
  void plan_prefills();
  void admit();
  bool reserve(Sequence& sequence, std::int64_t positions);
  std::int64_t fitting(const Sequence& sequence) const;
  bool start(Sequence& sequence);
  void add(Sequence& sequence, std::int64_t count);
  void preempt_latest();
  void cache_full_blocks(Sequence& sequence);

  SchedulerOptions options_;
  KvCache cache_;
  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::vector<std::unique_ptr<Sequence>> running_;  // by the time they were admitted
  std::deque<std::unique_ptr<Sequence>> finished_;
  std::vector<Sequence*> planned_;  // one a span
  StepPlan plan_;
  std::int64_t budget_ = 0;  // tokens that the step can still take
  SchedulerCounts counts_;
  std::vector<std::string> rejected_;
};

}  // namespace demo
