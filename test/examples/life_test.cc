// Whole runs of scheduler, clients and verifier, with several steps in flight, in one thread.
#include <moetap/pending_rows.h>
#include <moetap/read_rows.h>

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "examples/simulator/clients.h"
#include "examples/simulator/scheduler.h"
#include "examples/simulator/trace.h"
#include "examples/simulator/verifier.h"
#include "test/examples/simulated_worker.h"

namespace demo {
namespace {

struct Life {
  std::string name;
  SchedulerOptions options;
  std::size_t depth = 1;
  double reject_rate = 0;
  double follow_up = 0;
  std::int64_t offload_blocks = 0;
};

class RequestLife : public testing::TestWithParam<Life> {
 protected:
  static constexpr moetap::Milliseconds kNow{0};

  RequestLife() {
    if (life.offload_blocks > 0) {
      offload.emplace(OffloadOptions{life.offload_blocks, ""}, shape, 16, scheduler.ledger(),
                      reader, kNow);
      scheduler.set_offload(&*offload);
    }
    scheduler.before_reuse(
        [this](std::span<const BlockId> blocks) { pending.take_early(blocks, kNow); });
  }

  // Steps run as late as possible: when a caller waits for their rows, or for what they sampled.
  void run_next() {
    const Batch& batch = worker.run(plans.at(replies.size()));
    replies.push_back({{batch.counts().begin(), batch.counts().end()},
                       {batch.sampled().begin(), batch.sampled().end()}});
  }

  void complete_oldest() {
    if (replies.empty()) run_next();
    const auto [counts, sampled] = std::move(replies.front());
    replies.pop_front();
    leave(scheduler.complete(plans.front().step, counts, sampled));
    plans.pop_front();
    for (const auto& sequence : scheduler.running()) {
      if (!sequence->streams || sequence->computed <= sequence->taken) continue;
      const auto plan = scheduler.ledger().rows_since(sequence->id, sequence->taken);
      clients.stream(*sequence, moetap::read_rows(reader, plan, kNow));
    }
  }

  void leave(std::vector<Ended> ended) {
    for (Ended& one : ended) {
      if (!one.sequence->wants_rows) continue;
      pending.add(std::move(one.rows));
      unread.emplace_back(std::move(one));
    }
  }

  void read(std::size_t leave_unread) {
    while (unread.size() > leave_unread) {
      const Ended ended = std::move(unread.front());
      unread.pop_front();
      Sequence& sequence = *ended.sequence;
      clients.append(sequence, pending.collect(sequence.id, kNow));
      scheduler.release(sequence);
      verifier.check(sequence.request, {0, ended.end}, clients.finish(sequence));
    }
  }

  const Life& life = GetParam();
  moetap::ModelShape shape = moetap::ModelShape::uniform(3, 2, 16);
  Trace trace = generate_trace(60, 7);
  Scheduler scheduler{life.options, trace.requests};
  SimulatedWorker worker{shape, life.options.num_blocks, 16, life.reject_rate};
  moetap::Reader reader{std::make_unique<SlotRowsReader>(worker.memory, [this] { run_next(); })};
  moetap::PendingRows pending{scheduler.ledger(), reader};
  std::optional<Offload> offload;
  Clients clients{shape, scheduler.sequences(), life.follow_up};
  Verifier verifier{shape};
  std::deque<StepPlan> plans;  // in flight
  std::deque<std::pair<std::vector<std::int32_t>, std::vector<Token>>> replies;
  std::deque<Ended> unread;
};

TEST_P(RequestLife, EveryRowThatWasAskedForIsReadAsTheModelComputedIt) {
  while (!scheduler.done() || !plans.empty()) {
    const StepPlan* plan = nullptr;
    if (plans.size() < life.depth && !scheduler.done()) plan = &scheduler.plan();
    if (plan != nullptr && !plan->empty()) {
      ASSERT_LE(plan->num_tokens, life.options.max_tokens);
      plans.push_back(*plan);
      leave(scheduler.abort_due());
      read(4);
    } else if (!plans.empty()) {
      complete_oldest();
    } else {
      read(0);
    }
  }
  read(0);
  const VerifierCounts& rows = verifier.counts();
  EXPECT_EQ(rows.verified, rows.expected) << (rows.examples.empty() ? "" : rows.examples[0]);
  EXPECT_EQ(rows.wrong, 0);

  const SchedulerCounts& counts = scheduler.counts();
  const ClientOptions& options = life.options.clients;
  EXPECT_EQ(scheduler.cache().free_blocks(), life.options.num_blocks);
  EXPECT_EQ(scheduler.ledger().num_wanting(), 0);
  EXPECT_EQ(pending.size(), 0U);
  EXPECT_GT(counts.prefix_hit_tokens, 0);
  EXPECT_EQ(counts.preemptions > 0, life.options.num_blocks < 1000);
  EXPECT_EQ(counts.aborted > 0, options.abort > 0);
  EXPECT_EQ(counts.wanting < 60, options.opt_in < 1);
  EXPECT_EQ(counts.rows_published < counts.tokens, options.opt_in < 1);
  EXPECT_EQ(counts.drafts_rejected > 0, life.reject_rate > 0);
  EXPECT_EQ(clients.counts().streamed > 0, options.stream > 0);
  EXPECT_EQ(clients.counts().kept > 0, life.follow_up > 0);
  EXPECT_EQ(counts.offload_hit_tokens > 0, life.offload_blocks > 0);
  std::int64_t all = 0;
  for (const Request& request : trace.requests) all += request.length() - 1;
  if (options.abort == 0 && options.opt_in == 1) {
    EXPECT_EQ(rows.expected, all);
  } else {
    EXPECT_LT(rows.expected, all);
    EXPECT_GT(rows.expected, 0);
  }
  if (life.depth == 1 && counts.preemptions == 0 && life.options.drafts == 0 &&
      options.abort == 0 && options.opt_in == 1) {
    EXPECT_EQ(counts.tokens + counts.prefix_hit_tokens, all);
  }
}

// H9, H10, H11, H16-H19, one by one and together.
INSTANTIATE_TEST_SUITE_P(
    Lives, RequestLife,
    testing::Values(
        Life{"plain", {.num_blocks = 20'000}},
        Life{"few_blocks", {.num_blocks = 140, .max_tokens = 256, .max_requests = 16}},
        Life{"few_blocks_held",
             {.num_blocks = 140, .max_tokens = 256, .max_requests = 16, .hold_blocks = true}},
        Life{"small_steps", {.num_blocks = 160, .max_tokens = 33, .max_requests = 20}, 2},
        Life{"ahead", {.num_blocks = 200, .max_tokens = 64}, 4},
        Life{"ahead_held", {.num_blocks = 200, .max_tokens = 64, .hold_blocks = true}, 4},
        Life{"speculation", {.num_blocks = 200, .drafts = 3}, 1, 0.3},
        Life{"speculation_ahead", {.num_blocks = 200, .drafts = 5}, 4, 0.5},
        Life{"aborts", {.num_blocks = 200, .clients = {.abort = 0.5}}, 3},
        Life{"opt_in", {.num_blocks = 200, .clients = {.opt_in = 0.5}}, 2},
        Life{"streams", {.num_blocks = 200, .clients = {.stream = 0.5}}, 2},
        Life{"turns", {.num_blocks = 200, .max_requests = 4}, 2, 0, 1},
        Life{"offload", {.num_blocks = 180, .max_requests = 12}, 1, 0, 0, 500},
        Life{"offload_little", {.num_blocks = 180, .max_requests = 12}, 2, 0, 0, 40},
        Life{"offload_speculation",
             {.num_blocks = 180, .max_requests = 12, .drafts = 2},
             4,
             0.4,
             0,
             500},
        Life{"all",
             {.num_blocks = 180,
              .max_requests = 12,
              .drafts = 2,
              .clients = {.opt_in = 0.8, .stream = 0.5, .abort = 0.2}},
             3,
             0.4,
             1},
        Life{"all_held",
             {.num_blocks = 180,
              .max_requests = 12,
              .drafts = 2,
              .hold_blocks = true,
              .clients = {.opt_in = 0.8, .stream = 0.5, .abort = 0.2}},
             4,
             0.4,
             1,
             300}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace demo
