#include "examples/simulator/scheduler.h"

#include <moetap/error.h>

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "examples/simulator/trace.h"
#include "test/examples/simulated_worker.h"

namespace demo {
namespace {

Request request_of(std::int64_t prompt, std::int64_t output, std::uint64_t first_block) {
  Request request{"test", first_block, prompt, output, {}};
  for (std::int64_t b = 0; b * kPromptBlock < prompt; ++b) {
    request.block_hashes.push_back(first_block + static_cast<std::uint64_t>(b));
  }
  return request;
}

const auto kShape = moetap::ModelShape::uniform(3, 2, 16);

// A scheduler whose steps run in this thread.
class SchedulerTest : public testing::Test {
 protected:
  void make(SchedulerOptions options, const std::vector<Request>& requests,
            double reject_rate = 0) {
    scheduler = std::make_unique<Scheduler>(options, requests);
    worker = std::make_unique<SimulatedWorker>(kShape, options.num_blocks, options.block_size,
                                               reject_rate);
  }

  std::vector<Ended> run(const StepPlan& plan) {
    const Batch& batch = worker->run(plan);
    return scheduler->complete(plan.step, batch.counts(), batch.sampled());
  }

  // Runs one step after the other until all requests are over, and returns the number of tokens
  // that the plans held for each.
  std::map<moetap::RequestId, std::int64_t> run_all() {
    std::map<moetap::RequestId, std::int64_t> tokens;
    while (!scheduler->done()) {
      const StepPlan& plan = scheduler->plan();
      for (const PlanSpan& span : plan.spans) tokens[span.request] += span.count;
      for (const Ended& ended : run(plan)) scheduler->release(*ended.sequence);
    }
    return tokens;
  }

  std::unique_ptr<Scheduler> scheduler;
  std::unique_ptr<SimulatedWorker> worker;
};

TEST_F(SchedulerTest, RunsEveryTokenButTheLastOnce) {
  make({.num_blocks = 100, .max_tokens = 64, .max_requests = 4},
       {request_of(100, 5, 1000), request_of(30, 1, 2000)});
  const auto tokens = run_all();
  EXPECT_EQ(tokens.at(1), 104);
  EXPECT_EQ(tokens.at(2), 30);
  EXPECT_EQ(scheduler->counts().tokens, 134);
  EXPECT_EQ(scheduler->counts().rows_published, 134);
  EXPECT_EQ(scheduler->counts().prefix_hit_tokens, 0);
  EXPECT_EQ(scheduler->counts().preemptions, 0);
  EXPECT_EQ(scheduler->cache().free_blocks(), 100);
}

TEST_F(SchedulerTest, ChunksAPromptAndDecodesFirst) {
  make({.num_blocks = 100, .max_tokens = 64, .max_requests = 4},
       {request_of(10, 5, 1000), request_of(150, 2, 2000)});
  const StepPlan& first = scheduler->plan();
  ASSERT_EQ(first.spans.size(), 2U);
  EXPECT_EQ(first.spans[0].count, 10);
  EXPECT_EQ(first.spans[0].kind, SpanKind::last_prefill);
  EXPECT_EQ(first.spans[1].count, 54);
  EXPECT_EQ(first.spans[1].kind, SpanKind::prefill);
  run(first);
  const StepPlan& second = scheduler->plan();
  ASSERT_EQ(second.spans.size(), 2U);
  EXPECT_EQ(second.spans[0].request, moetap::RequestId(1));
  EXPECT_EQ(second.spans[0].position, 10);
  EXPECT_EQ(second.spans[0].count, 1);
  EXPECT_EQ(second.spans[1].position, 54);
  EXPECT_EQ(second.spans[1].count, 63);
}

TEST_F(SchedulerTest, RejectsWhatCanNeverFitByName) {
  Request big = request_of(65, 1, 1000);
  big.name = "big.csv:7";
  make({.num_blocks = 4, .max_tokens = 64, .max_requests = 4},
       {std::move(big), request_of(64, 1, 2000)});
  ASSERT_EQ(scheduler->rejected().size(), 1U);
  EXPECT_EQ(scheduler->rejected()[0],
            "big.csv:7: 66 tokens need 5 KV blocks, there are 4 (--kv-blocks)");
  EXPECT_EQ(run_all().size(), 1U);
}

TEST_F(SchedulerTest, TakesAPrefixThatAnEarlierRequestComputed) {
  make({.num_blocks = 100, .max_tokens = 64, .max_requests = 1},
       {request_of(48, 1, 1000), request_of(48, 1, 1000)});
  const auto tokens = run_all();
  // The last block is computed again, since its last token is needed to sample from.
  EXPECT_EQ(tokens.at(2), 16);
  EXPECT_EQ(scheduler->counts().prefix_hit_tokens, 32);
}

// H9: a prefix that was not wanted has no rows; a request that wants its own computes it again, and
// the next one finds those rows.
TEST_F(SchedulerTest, TakesAPrefixOnlyAsFarAsItHasTheRowsThatAreWanted) {
  std::vector<Request> requests{request_of(48, 1, 1000), request_of(48, 1, 1000),
                                request_of(48, 1, 1000)};
  // Seeds of which the first one alone does not opt in at one half.
  const auto opts_in = [](std::uint64_t seed) {
    const Request request{"", seed, 1, 1, {1}};
    return Scheduler({.clients = {.opt_in = 0.5}}, {request}).sequences()[0]->wants_rows;
  };
  std::uint64_t seed = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    do ++seed;
    while (opts_in(seed) != (i > 0));
    requests[i].seed = seed;
  }
  make({.num_blocks = 100, .max_tokens = 64, .max_requests = 1, .clients = {.opt_in = 0.5}},
       requests);
  EXPECT_EQ(scheduler->counts().wanting, 2);
  const auto tokens = run_all();
  EXPECT_EQ(tokens.at(1), 48);
  EXPECT_EQ(tokens.at(2), 48);
  EXPECT_EQ(tokens.at(3), 16);
  EXPECT_EQ(scheduler->counts().rows_published, 48 + 16);
}

TEST_F(SchedulerTest, TakesNoPrefixWithoutAPrefixCache) {
  make({.num_blocks = 100, .max_tokens = 64, .max_requests = 1, .prefix_cache = false},
       {request_of(48, 1, 1000), request_of(48, 1, 1000)});
  EXPECT_EQ(run_all().at(2), 48);
}

TEST_F(SchedulerTest, TellsTheWorkerInTheEndWhatEnded) {
  make({.num_blocks = 100}, {request_of(48, 1, 1000)});
  run_all();
  const StepPlan& plan = scheduler->farewell();
  EXPECT_TRUE(plan.empty());
  ASSERT_EQ(plan.ended.size(), 1U);
  EXPECT_EQ(plan.ended[0].request, moetap::RequestId(1));
  EXPECT_TRUE(scheduler->farewell().ended.empty());
}

TEST_F(SchedulerTest, SharesABlockOnlyOnceAllOfItIsComputed) {
  make({.num_blocks = 100, .max_tokens = 24, .max_requests = 2},
       {request_of(40, 1, 1000), request_of(40, 1, 1000)});
  run(scheduler->plan());  // a block and a half of the first
  const StepPlan& plan = scheduler->plan();
  ASSERT_EQ(plan.spans.size(), 2U);
  EXPECT_EQ(plan.spans[0].position, 24);
  EXPECT_EQ(plan.spans[1].position, 16);
}

TEST_F(SchedulerTest, PreemptsTheLatestAndComputesItAgain) {
  // Both fit with their prompts; when they grow, only one does.
  make({.num_blocks = 5, .max_tokens = 64, .max_requests = 2},
       {request_of(32, 20, 1000), request_of(30, 20, 2000)});
  std::vector<PlanEnd> ended;
  std::vector<moetap::RequestId> finished;
  while (!scheduler->done()) {
    const StepPlan& plan = scheduler->plan();
    ended.insert(ended.end(), plan.ended.begin(), plan.ended.end());
    for (const Ended& one : run(plan)) {
      const Sequence& sequence = *one.sequence;
      for (std::int64_t p = 0; p < sequence.request.length(); ++p) {
        EXPECT_EQ(sequence.tokens.at(static_cast<std::size_t>(p)), token_of(sequence.request, p));
      }
      finished.push_back(sequence.id);
    }
  }
  EXPECT_GT(scheduler->counts().preemptions, 0);
  ASSERT_FALSE(ended.empty());
  EXPECT_EQ(ended[0].request, moetap::RequestId(2));
  EXPECT_EQ(ended[0].how, static_cast<std::uint64_t>(moetap::RequestEnd::preempted));
  EXPECT_EQ(finished, (std::vector<moetap::RequestId>{1, 2}));
  EXPECT_EQ(scheduler->cache().free_blocks(), 5);
}

// H11: either no block is reused whose rows were not read …
TEST_F(SchedulerTest, HoldsTheBlocksOfFinishedRequestsUntilTheyAreReleased) {
  make({.num_blocks = 4, .max_tokens = 64, .max_requests = 4, .hold_blocks = true},
       {request_of(64, 1, 1000), request_of(64, 1, 2000)});
  const std::vector<Ended> finished = run(scheduler->plan());
  ASSERT_EQ(finished.size(), 1U);
  EXPECT_EQ(scheduler->cache().free_blocks(), 0);
  EXPECT_TRUE(scheduler->plan().empty());
  scheduler->release(*finished[0].sequence);
  EXPECT_FALSE(scheduler->plan().empty());
}

// … or the reader is told before.
TEST_F(SchedulerTest, TellsWhichBlocksAreReusedBeforeTheLedgerKnows) {
  make({.num_blocks = 4, .max_tokens = 64, .max_requests = 4},
       {request_of(64, 1, 1000), request_of(64, 1, 2000)});
  const std::vector<Ended> finished = run(scheduler->plan());
  ASSERT_EQ(finished.size(), 1U);
  moetap::Hold hold = scheduler->ledger().hold(finished[0].rows);
  std::vector<BlockId> reused;
  scheduler->before_reuse([&](std::span<const BlockId> blocks) {
    reused.insert(reused.end(), blocks.begin(), blocks.end());
    hold = moetap::Hold();
  });
  EXPECT_FALSE(scheduler->plan().empty());
  EXPECT_EQ(reused.size(), 4U);
}

TEST_F(SchedulerTest, PlansAheadOfWhatIsSampledAndBeyondTheEndThatItCannotKnow) {
  make({.num_blocks = 100, .max_tokens = 64, .max_requests = 4}, {request_of(10, 2, 1000)});
  std::vector<StepPlan> plans;
  plans.reserve(4);
  for (int i = 0; i < 4; ++i) plans.push_back(scheduler->plan());
  EXPECT_EQ(scheduler->in_flight(), 4U);
  for (std::int64_t i = 1; i < 4; ++i) {
    const PlanSpan& span = plans[static_cast<std::size_t>(i)].spans.at(0);
    EXPECT_EQ(span.kind, SpanKind::decode);
    EXPECT_EQ(span.position, 9 + i);
  }
  EXPECT_TRUE(run(plans[0]).empty());
  EXPECT_EQ(run(plans[1]).size(), 1U);  // its end
  EXPECT_TRUE(scheduler->done());
  EXPECT_TRUE(run(plans[2]).empty());
  EXPECT_TRUE(run(plans[3]).empty());
  EXPECT_EQ(scheduler->counts().tokens, 13);
}

TEST_F(SchedulerTest, DoesNotOutgrowTheCacheWhileItsEndIsUnknown) {
  make({.num_blocks = 4, .max_tokens = 64, .max_requests = 4}, {request_of(64, 1, 1000)});
  const StepPlan first = scheduler->plan();
  EXPECT_TRUE(scheduler->plan().empty());
  EXPECT_EQ(run(first).size(), 1U);
}

// H17: what the scheduler planned as if nothing were rejected goes where the request really stands.
TEST_F(SchedulerTest, CorrectsStepsInFlightWhenDraftsAreRejected) {
  make({.num_blocks = 100, .max_tokens = 64, .max_requests = 4, .drafts = 3},
       {request_of(10, 50, 1000)}, 1.0);
  run(scheduler->plan());
  const StepPlan first = scheduler->plan();
  const StepPlan second = scheduler->plan();
  EXPECT_EQ(first.spans.at(0).count, 4);
  EXPECT_EQ(second.spans.at(0).position, 14);
  run(first);
  EXPECT_EQ(scheduler->plan().spans.at(0).position, 15);  // 11 of `second`, and its 4
  const Batch& batch = worker->run(second);
  EXPECT_EQ(batch.positions()[0], 11);
  scheduler->complete(second.step, batch.counts(), batch.sampled());
  EXPECT_EQ(scheduler->running().at(0)->computed, 12);
  EXPECT_EQ(scheduler->counts().drafts, 6);
  EXPECT_EQ(scheduler->counts().drafts_rejected, 6);
  // The ledger knows too: the rows up to there are of these steps.
  const moetap::RowPlan rows = scheduler->ledger().rows_since(1, 10);
  EXPECT_EQ(rows.range, (moetap::TokenRange{10, 12}));
  EXPECT_EQ(rows.windows.at(0).first, first.step);
  EXPECT_EQ(rows.windows.at(1).first, second.step);
}

TEST_F(SchedulerTest, RefusesOptionsAndRepliesThatCannotWork) {
  EXPECT_THROW(Scheduler({.num_blocks = 4, .max_tokens = 3, .max_requests = 4}, {}),
               moetap::ArgumentError);
  EXPECT_THROW(Scheduler({.num_blocks = 0}, {}), moetap::ArgumentError);
  make({.num_blocks = 4, .drafts = 1}, {request_of(10, 20, 1)});
  const std::vector<std::int32_t> none, zero{0}, one{1}, two{2}, three{3}, ones{1, 1};
  const std::vector<Token> tokens(3);
  const auto complete = [&](Step step, const std::vector<std::int32_t>& counts, std::size_t size) {
    scheduler->complete(step, counts, std::span(tokens).first(size));
  };
  EXPECT_THROW(complete(1, one, 1), moetap::ArgumentError);  // nothing is in flight
  scheduler->plan();
  EXPECT_THROW(complete(2, one, 1), moetap::ArgumentError);
  EXPECT_THROW(complete(1, none, 0), moetap::ArgumentError);
  EXPECT_THROW(complete(1, zero, 0), moetap::ArgumentError);
  EXPECT_THROW(complete(1, two, 2), moetap::ArgumentError);  // a prompt has no drafts
  EXPECT_THROW(complete(1, one, 0), moetap::ArgumentError);
  EXPECT_THROW(complete(1, one, 2), moetap::ArgumentError);
  EXPECT_THROW(complete(1, ones, 2), moetap::ArgumentError);
  EXPECT_EQ(scheduler->in_flight(), 1U);
  complete(1, one, 1);
  scheduler->plan();
  EXPECT_THROW(complete(2, three, 3), moetap::ArgumentError);
  complete(2, two, 2);
  EXPECT_EQ(scheduler->running().at(0)->num_tokens(), 13);
}

}  // namespace
}  // namespace demo
