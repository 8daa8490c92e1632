#include "scheduler.h"

#include <moetap/error.h>

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "simulated_worker.h"
#include "trace.h"
#include "verifier.h"

namespace demo {
namespace {

Request request_of(std::int64_t prompt, std::int64_t output, std::uint64_t first_block) {
  Request request{"test", first_block, prompt, output, {}};
  for (std::int64_t b = 0; b * kPromptBlock < prompt; ++b) {
    request.block_hashes.push_back(first_block + static_cast<std::uint64_t>(b));
  }
  return request;
}

std::vector<Token> samples_for(const StepPlan& plan) {
  std::vector<Token> sampled;
  for (const PlanSpan& span : plan.spans) {
    if (span.sample != 0) sampled.push_back(sampled_token(span.seed, span.position + span.count));
  }
  return sampled;
}

// Runs everything, and returns the number of tokens that the plans held for each request.
std::map<std::uint64_t, std::int64_t> run_all(Scheduler& scheduler) {
  std::map<std::uint64_t, std::int64_t> tokens;
  for (Step step = 1; !scheduler.done();) {
    const StepPlan& plan = scheduler.plan(step);
    if (!plan.empty()) {
      for (const PlanSpan& span : plan.spans) tokens[span.request] += span.count;
      scheduler.complete(samples_for(plan));
      ++step;
    }
    while (!scheduler.finished().empty()) scheduler.release_finished();
  }
  return tokens;
}

TEST(Scheduler, RunsEveryTokenButTheLastOnce) {
  Scheduler scheduler({.num_blocks = 100, .max_tokens = 64, .max_requests = 4},
                      {request_of(100, 5, 1000), request_of(30, 1, 2000)});
  const auto tokens = run_all(scheduler);
  EXPECT_EQ(tokens.at(1), 104);
  EXPECT_EQ(tokens.at(2), 30);
  EXPECT_EQ(scheduler.counts().tokens, 134);
  EXPECT_EQ(scheduler.counts().prefix_hit_tokens, 0);
  EXPECT_EQ(scheduler.counts().preemptions, 0);
  EXPECT_EQ(scheduler.cache().free_blocks(), 100);
}

TEST(Scheduler, ChunksAPromptAndDecodesFirst) {
  Scheduler scheduler({.num_blocks = 100, .max_tokens = 64, .max_requests = 4},
                      {request_of(10, 5, 1000), request_of(150, 2, 2000)});
  const StepPlan& first = scheduler.plan(1);
  ASSERT_EQ(first.spans.size(), 2U);
  EXPECT_EQ(first.spans[0].count, 10);
  EXPECT_EQ(first.spans[0].sample, 1);
  EXPECT_EQ(first.spans[1].count, 54);
  EXPECT_EQ(first.spans[1].sample, 0);
  scheduler.complete(samples_for(first));
  const StepPlan& second = scheduler.plan(2);
  ASSERT_EQ(second.spans.size(), 2U);
  EXPECT_EQ(second.spans[0].request, 1U);
  EXPECT_EQ(second.spans[0].position, 10);
  EXPECT_EQ(second.spans[0].count, 1);
  EXPECT_EQ(second.spans[1].position, 54);
  EXPECT_EQ(second.spans[1].count, 63);
}

TEST(Scheduler, RejectsWhatCanNeverFitByName) {
  Request big = request_of(65, 1, 1000);
  big.name = "big.csv:7";
  Scheduler scheduler({.num_blocks = 4, .max_tokens = 64, .max_requests = 4},
                      {std::move(big), request_of(64, 1, 2000)});
  ASSERT_EQ(scheduler.rejected().size(), 1U);
  EXPECT_EQ(scheduler.rejected()[0],
            "big.csv:7: 66 tokens need 5 KV blocks, there are 4 (--kv-blocks)");
  EXPECT_EQ(run_all(scheduler).size(), 1U);
}

TEST(Scheduler, TakesAPrefixThatAnEarlierRequestComputed) {
  Scheduler scheduler({.num_blocks = 100, .max_tokens = 64, .max_requests = 1},
                      {request_of(48, 1, 1000), request_of(48, 1, 1000)});
  const auto tokens = run_all(scheduler);
  // The last block is computed again, since its last token is needed to sample from.
  EXPECT_EQ(tokens.at(2), 16);
  EXPECT_EQ(scheduler.counts().prefix_hit_tokens, 32);
}

TEST(Scheduler, SharesABlockOnlyOnceAllOfItIsComputed) {
  Scheduler scheduler({.num_blocks = 100, .max_tokens = 24, .max_requests = 2},
                      {request_of(40, 1, 1000), request_of(40, 1, 1000)});
  scheduler.complete(samples_for(scheduler.plan(1)));  // a block and a half of the first
  const StepPlan& plan = scheduler.plan(2);
  ASSERT_EQ(plan.spans.size(), 2U);
  EXPECT_EQ(plan.spans[0].position, 24);
  EXPECT_EQ(plan.spans[1].position, 16);
}

TEST(Scheduler, PreemptsTheLatestAndComputesItAgain) {
  // Both fit with their prompts; when they grow, only one does.
  Scheduler scheduler({.num_blocks = 5, .max_tokens = 64, .max_requests = 2},
                      {request_of(32, 20, 1000), request_of(30, 20, 2000)});
  std::vector<PlanEnd> ended;
  std::vector<std::uint64_t> finished;
  for (Step step = 1; !scheduler.done();) {
    const StepPlan& plan = scheduler.plan(step);
    ended.insert(ended.end(), plan.ended.begin(), plan.ended.end());
    if (!plan.empty()) {
      scheduler.complete(samples_for(plan));
      ++step;
    }
    while (!scheduler.finished().empty()) {
      const Sequence& sequence = *scheduler.finished().front();
      for (std::int64_t p = sequence.request.prompt; p < sequence.request.length(); ++p) {
        EXPECT_EQ(sequence.tokens[static_cast<std::size_t>(p)],
                  sampled_token(sequence.request.seed, p));
      }
      finished.push_back(sequence.id);
      scheduler.release_finished();
    }
  }
  EXPECT_GT(scheduler.counts().preemptions, 0);
  ASSERT_FALSE(ended.empty());
  EXPECT_EQ(ended[0].request, 2U);
  EXPECT_EQ(ended[0].how, static_cast<std::uint64_t>(moetap::RequestEnd::preempted));
  EXPECT_EQ(finished, (std::vector<std::uint64_t>{1, 2}));
  EXPECT_EQ(scheduler.cache().free_blocks(), 5);
}

// H11: the scheduler does not reuse blocks whose rows nobody has read.
TEST(Scheduler, KeepsTheBlocksOfFinishedRequestsUntilTheyAreReleased) {
  Scheduler scheduler({.num_blocks = 4, .max_tokens = 64, .max_requests = 4},
                      {request_of(64, 1, 1000), request_of(64, 1, 2000)});
  scheduler.complete(samples_for(scheduler.plan(1)));
  ASSERT_EQ(scheduler.finished().size(), 1U);
  EXPECT_EQ(scheduler.cache().free_blocks(), 0);
  EXPECT_TRUE(scheduler.plan(2).empty());
  scheduler.release_finished();
  EXPECT_FALSE(scheduler.plan(2).empty());
}

TEST(Scheduler, RefusesOptionsAndRepliesThatCannotWork) {
  EXPECT_THROW(Scheduler({.num_blocks = 4, .max_tokens = 3, .max_requests = 4}, {}),
               moetap::ArgumentError);
  EXPECT_THROW(Scheduler({.num_blocks = 0}, {}), moetap::ArgumentError);
  Scheduler scheduler({.num_blocks = 4}, {request_of(10, 2, 1)});
  scheduler.plan(1);
  EXPECT_THROW(scheduler.complete({}), moetap::ArgumentError);
}

struct Load {
  std::uint64_t seed;
  std::int64_t num_blocks;
  std::int64_t max_tokens;
  std::int64_t max_requests;
};

class SchedulerUnderLoad : public testing::TestWithParam<Load> {};

// What holds for every plan: it keeps its budget, no two tokens share a slot, and each request's
// positions follow each other from where it stood, or from the start (or a cached prefix).
void check_plan(const StepPlan& plan, const Load& load,
                std::map<std::uint64_t, std::int64_t>& next) {
  ASSERT_LE(std::ssize(plan.tokens), load.max_tokens);
  ASSERT_LE(std::ssize(plan.spans), load.max_requests);
  ASSERT_EQ(std::set(plan.slots.begin(), plan.slots.end()).size(), plan.tokens.size());
  for (const PlanEnd& end : plan.ended) next.erase(end.request);
  for (const PlanSpan& span : plan.spans) {
    const auto known = next.find(span.request);
    if (known == next.end()) {
      ASSERT_EQ(span.position % 16, 0);
    } else {
      ASSERT_EQ(span.position, known->second);
    }
    next[span.request] = span.position + span.count;
  }
}

// H9, H10, H11: every row of every request is read back as the model computed it for this request,
// with shared prefixes, preemptions, and blocks that change hands all the time.
TEST_P(SchedulerUnderLoad, EveryRowOfEveryRequestCanBeReadWhenItFinishes) {
  const Load load = GetParam();
  const auto shape = moetap::ModelShape::uniform(3, 2, 16);
  const Trace trace = generate_trace(60, load.seed);
  Scheduler scheduler({.num_blocks = load.num_blocks,
                       .max_tokens = load.max_tokens,
                       .max_requests = load.max_requests},
                      trace.requests);
  SlotRows memory(shape, load.num_blocks * 16);
  moetap::Reader reader(std::make_unique<SlotRowsReader>(memory));
  Verifier verifier(shape);
  std::map<std::uint64_t, std::int64_t> next;
  std::int64_t tokens = 0;
  std::size_t finished = 0;

  for (Step step = 1; !scheduler.done();) {
    const StepPlan& plan = scheduler.plan(step);
    if (!plan.empty()) {
      check_plan(plan, load, next);
      if (HasFatalFailure()) return;
      tokens += std::ssize(plan.tokens);
      const auto sampled = run_plan(plan, memory);
      // As in the simulator: rows are read while the next step already runs.
      while (!scheduler.finished().empty()) {
        verifier.read_and_check(reader, *scheduler.finished().front(), scheduler.cache());
        scheduler.release_finished();
        ++finished;
      }
      scheduler.complete(sampled);
      ++step;
    } else {
      ASSERT_FALSE(scheduler.finished().empty());
      verifier.read_and_check(reader, *scheduler.finished().front(), scheduler.cache());
      scheduler.release_finished();
      ++finished;
    }
  }
  while (!scheduler.finished().empty()) {
    verifier.read_and_check(reader, *scheduler.finished().front(), scheduler.cache());
    scheduler.release_finished();
    ++finished;
  }

  std::int64_t rows = 0;
  for (const Request& request : trace.requests) rows += request.length() - 1;
  EXPECT_EQ(finished, trace.requests.size());
  EXPECT_EQ(verifier.counts().expected, rows);
  EXPECT_EQ(verifier.counts().verified, rows);
  EXPECT_EQ(verifier.counts().wrong, 0);
  EXPECT_EQ(verifier.counts().missing, 0);
  EXPECT_EQ(scheduler.counts().tokens, tokens);
  EXPECT_EQ(scheduler.cache().free_blocks(), load.num_blocks);
  EXPECT_GT(scheduler.counts().prefix_hit_tokens, 0);
  // Every row was run or found; what is above that was computed again after a preemption.
  EXPECT_GE(tokens + scheduler.counts().prefix_hit_tokens, rows);
  if (scheduler.counts().preemptions == 0) {
    EXPECT_EQ(tokens + scheduler.counts().prefix_hit_tokens, rows);
  }
  EXPECT_EQ(scheduler.counts().preemptions > 0, load.num_blocks < 1000);
}

INSTANTIATE_TEST_SUITE_P(Loads, SchedulerUnderLoad,
                         testing::Values(Load{1, 140, 256, 16}, Load{2, 200, 64, 64},
                                         Load{3, 300, 2048, 64}, Load{4, 160, 33, 20},
                                         Load{5, 20'000, 2048, 64}));

}  // namespace
}  // namespace demo
