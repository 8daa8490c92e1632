// Decides what a worker runs in each step: continuous batching with chunked prefill over a paged KV
// cache, ahead of the sampled tokens. Reports all decisions to a moetap::Ledger, and returns the
// ledger's plans of what to read. Independent of processes and devices.
#pragma once

#include <moetap/ledger.h>
#include <moetap/step.h>
#include <moetap/types.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "examples/simulator/kv_cache.h"
#include "examples/simulator/offload.h"
#include "examples/simulator/plan.h"
#include "examples/simulator/sequence.h"
#include "examples/simulator/trace.h"

namespace demo {

// The behaviour of a run's clients: shares of the requests, drawn from each one's seed.
struct ClientOptions {
  double opt_in = 1;  // ask for rows
  double stream = 0;  // of those, ask for rows while the request runs
  double abort = 0;   // abort at some step
};

struct SchedulerOptions {
  std::int64_t num_blocks = 4096;
  int block_size = 16;
  std::int64_t max_tokens = 2048;  // of a step
  std::int64_t max_requests = 64;  // that run at the same time
  std::int64_t drafts = 0;         // proposed for a decoding request in a step
  bool prefix_cache = true;
  bool hold_blocks = false;  // of ended requests, until release()
  ClientOptions clients{};
};

struct SchedulerCounts {
  std::int64_t steps = 0;
  std::int64_t tokens = 0;              // run through the model, recomputed ones included
  std::int64_t prefix_hit_tokens = 0;   // not run because their blocks were cached
  std::int64_t offload_hit_tokens = 0;  // not run because they were loaded from the store
  std::int64_t preemptions = 0;
  std::int64_t drafts = 0;
  std::int64_t drafts_rejected = 0;
  std::int64_t wanting = 0;  // requests that ask for rows
  std::int64_t aborted = 0;
  std::int64_t rows_published = 0;

  SchedulerCounts& operator+=(const SchedulerCounts& other);
};

// An ended request, and what to read of it.
struct Ended {
  std::shared_ptr<Sequence> sequence;
  bool aborted;
  moetap::RowPlan rows;  // from Sequence::taken on
  std::int64_t end;      // that they must have, by the scheduler's own account
};

// Requests wait in order. A step first takes a token (and drafts) of every decoding request, then
// chunks of prompts, oldest request first, then admits waiting requests. When blocks run out, the
// latest request is preempted: it gives up its blocks and is computed again, including sampled
// tokens. Only sampled tokens show that a request is finished, so steps are planned beyond its end.
class Scheduler {
 public:
  using Sequences = std::vector<std::shared_ptr<Sequence>>;

  Scheduler(const SchedulerOptions& options, const std::vector<Request>& requests);

  // Called with blocks that are about to get new contents, before the ledger is told.
  void before_reuse(std::function<void(std::span<const BlockId>)> callback) {
    before_reuse_ = std::move(callback);
  }

  // Where blocks that leave the cache go, and come back from. With drafts, steps in flight are
  // completed before anything comes back: the ledger must know their accepted positions.
  void set_offload(Offload* offload) { offload_ = offload; }

  // Requests that can never fit, as "name: why". They are not served.
  const std::vector<std::string>& rejected() const { return rejected_; }
  const Sequences& sequences() const { return sequences_; }  // all others
  const Sequences& running() const { return running_; }
  const SchedulerCounts& counts() const { return counts_; }
  const KvCache& cache() const { return cache_; }
  const SchedulerOptions& options() const { return options_; }
  moetap::Ledger& ledger() { return ledger_; }

  bool done() const { return waiting_.empty() && running_.empty(); }  // all requests have ended
  Step last_step() const { return last_step_; }                       // that was planned
  std::size_t in_flight() const { return in_flight_.size(); }         // steps
  Step oldest_in_flight() const { return in_flight_.front().step; }

  // The next step; valid until the next call. Empty if nothing can continue before the oldest step
  // in flight is complete, or held blocks are released.
  const StepPlan& plan();

  // What the worker was not yet told when all requests have ended: a plan without tokens.
  const StepPlan& farewell();

  // The oldest step in flight ran. Gives, for each of its spans that samples, the number of sampled
  // tokens (1 + accepted drafts), and all tokens. Returns the requests that finished.
  // moetap::ArgumentError if this does not match the step.
  std::vector<Ended> complete(Step step, std::span<const std::int32_t> counts,
                              std::span<const Token> sampled);

  // Requests whose clients abort now, perhaps with steps in flight.
  std::vector<Ended> abort_due();

  // The rows of an ended request were read (only relevant with hold_blocks).
  void release(Sequence& sequence);

 private:
  // A step's work for one request.
  struct Work {
    std::shared_ptr<Sequence> sequence;
    std::uint64_t run;
    moetap::TokenRange positions;
    SpanKind kind;
  };
  struct InFlight {
    Step step;
    std::vector<Work> work;
  };

  void add_request(Request request, std::size_t number);
  void begin_plan();
  void plan_decodes();
  void plan_prefills();
  void admit();
  bool admit_offloaded();
  bool start(const std::shared_ptr<Sequence>& sequence);
  void enter(const std::shared_ptr<Sequence>& sequence, std::span<const BlockId> blocks);
  std::size_t usable_blocks(const Sequence& sequence) const;
  void take_hit(Sequence& sequence);
  bool reserve(Sequence& sequence, std::int64_t positions);
  std::int64_t fitting(const Sequence& sequence) const;
  void add(const std::shared_ptr<Sequence>& sequence, std::int64_t count);
  void preempt_latest();
  bool accept(Step step, const Work& work, std::span<const Token> sampled);
  void correct(Sequence& sequence);
  void cache_full_blocks(Sequence& sequence);
  Ended finish(const std::shared_ptr<Sequence>& sequence);
  Ended abort(const std::shared_ptr<Sequence>& sequence);
  void end(Sequence& sequence, moetap::RequestEnd how);

  SchedulerOptions options_;
  KvCache cache_;
  moetap::Ledger ledger_;
  std::function<void(std::span<const BlockId>)> before_reuse_ = [](auto) {};
  Offload* offload_ = nullptr;
  Sequences sequences_;
  std::deque<std::shared_ptr<Sequence>> waiting_;
  Sequences running_;  // by the time they were admitted
  std::deque<InFlight> in_flight_;
  StepPlan plan_;
  std::vector<Work> work_;      // one per span of plan_
  std::vector<BlockId> fresh_;  // of the span that is being planned
  std::vector<PlanEnd> ended_;  // that no plan has reported to the worker
  std::int64_t budget_ = 0;     // tokens that the step can still take
  std::int64_t unreleased_ = 0;
  Step last_step_ = 0;
  SchedulerCounts counts_;
  std::vector<std::string> rejected_;
};

}  // namespace demo
