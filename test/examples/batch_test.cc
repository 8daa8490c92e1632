#include "examples/simulator/batch.h"

#include <moetap/error.h>

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace demo {
namespace {

constexpr std::uint64_t kSeed = 77;
constexpr moetap::RequestId kId = 5;

// Blocks of 4.
class BatchTest : public testing::Test {
 protected:
  void begin(Batch& batch, const StepPlan& plan) {
    encode(plan, bytes_);
    view_ = decode_plan(bytes_);
    batch.begin(view_);
  }
  void run(Batch& batch, const StepPlan& plan) {
    begin(batch, plan);
    batch.sample(view_);
  }
  template <class T>
  static std::vector<T> vector(std::span<const T> values) {
    return {values.begin(), values.end()};
  }
  static StepPlan prefill(std::int64_t position, const std::vector<Token>& tokens,
                          std::vector<BlockId> blocks, SpanKind kind, bool starts) {
    const auto count = std::ssize(tokens);
    return {.step = 1,
            .ended = {},
            .spans = {{kId, kSeed, position, count, std::ssize(blocks), kind, starts ? 1U : 0U}},
            .blocks = std::move(blocks),
            .wanted = {},
            .tokens = tokens,
            .num_tokens = count};
  }
  static StepPlan decode(std::int64_t position, std::int64_t count,
                         std::vector<BlockId> blocks = {}) {
    return {.step = 2,
            .ended = {},
            .spans = {{kId, kSeed, position, count, std::ssize(blocks), SpanKind::decode, 0}},
            .blocks = std::move(blocks),
            .wanted = {},
            .tokens = {},
            .num_tokens = count};
  }
  void expect_refused(Batch& batch, const StepPlan& plan, const std::string& part) {
    try {
      begin(batch, plan);
      ADD_FAILURE() << "accepted";
    } catch (const moetap::MismatchError& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }

  std::vector<std::byte> bytes_;
  PlanView view_;
};

TEST_F(BatchTest, LaysAPromptOutInItsBlocksAndFillsInWhatItSampled) {
  Batch batch(4, 0);
  run(batch, prefill(0, {1, 2, 3}, {9}, SpanKind::prefill, true));
  EXPECT_EQ(vector(batch.slots()), (std::vector<Slot>{36, 37, 38}));
  EXPECT_EQ(vector(batch.positions()), (std::vector<std::int32_t>{0, 1, 2}));
  EXPECT_TRUE(batch.counts().empty());
  run(batch, prefill(3, {4, 5}, {2}, SpanKind::last_prefill, false));
  EXPECT_EQ(vector(batch.slots()), (std::vector<Slot>{39, 8}));
  EXPECT_EQ(vector(batch.tokens()), (std::vector<Token>{4, 5}));
  EXPECT_EQ(vector(batch.counts()), (std::vector<std::int32_t>{1}));
  EXPECT_EQ(vector(batch.sampled()), (std::vector<Token>{sampled_token(kSeed, 5)}));
  run(batch, decode(5, 1));
  EXPECT_EQ(vector(batch.slots()), (std::vector<Slot>{9}));
  EXPECT_EQ(vector(batch.tokens()), (std::vector<Token>{sampled_token(kSeed, 5)}));
  EXPECT_EQ(vector(batch.sampled()), (std::vector<Token>{sampled_token(kSeed, 6)}));
  ASSERT_EQ(batch.requests().size(), 1U);
  EXPECT_EQ(batch.requests()[0].request, kId);
  EXPECT_EQ(batch.requests()[0].position, 5);
  EXPECT_EQ(batch.requests()[0].count, 1);
}

TEST_F(BatchTest, AcceptsDraftsUpToTheFirstThatIsWrongAndGoesOnThere) {
  // A seed whose first draft is right and whose second is wrong.
  constexpr double rate = 0.5;
  std::uint64_t seed = 1;
  while (draft_token(seed, 2, rate) != sampled_token(seed, 2) ||
         draft_token(seed, 3, rate) == sampled_token(seed, 3)) {
    ++seed;
  }
  Batch batch(4, rate);
  StepPlan plan = prefill(0, {8}, {3, 4}, SpanKind::last_prefill, true);
  plan.spans[0].seed = seed;
  run(batch, plan);
  // Planned further on than it stands, as if drafts of steps in flight had been accepted.
  plan = decode(4, 4);
  plan.spans[0].seed = seed;
  run(batch, plan);
  EXPECT_EQ(vector(batch.positions()), (std::vector<std::int32_t>{1, 2, 3, 4}));
  EXPECT_EQ(batch.tokens()[2], draft_token(seed, 3, rate));
  EXPECT_EQ(vector(batch.counts()), (std::vector<std::int32_t>{2}));
  EXPECT_EQ(vector(batch.sampled()),
            (std::vector<Token>{sampled_token(seed, 2), sampled_token(seed, 3)}));
  run(batch, plan);
  EXPECT_EQ(batch.positions()[0], 3);
  EXPECT_EQ(batch.tokens()[0], sampled_token(seed, 3));
}

TEST_F(BatchTest, StartsAPreemptedRequestAnew) {
  Batch batch(4, 0);
  run(batch, prefill(0, {1, 2}, {9}, SpanKind::last_prefill, true));
  StepPlan again = prefill(4, {6}, {1, 2}, SpanKind::last_prefill, true);
  again.ended = {{kId, 1}};
  run(batch, again);
  EXPECT_EQ(vector(batch.slots()), (std::vector<Slot>{8}));
}

TEST_F(BatchTest, RefusesAPlanThatDoesNotGoOnWhereItsRequestStands) {
  Batch batch(4, 0);
  expect_refused(batch, decode(5, 1), "goes on with request 5, which was not started or has ended");
  run(batch, prefill(0, {1, 2}, {9}, SpanKind::prefill, true));
  expect_refused(batch, prefill(3, {4}, {}, SpanKind::prefill, false),
                 "puts request 5 at position 3; it stands at 2");
  run(batch, prefill(2, {4}, {}, SpanKind::last_prefill, false));
  expect_refused(batch, decode(2, 1), "puts request 5 at position 2; it stands at 3");
  StepPlan ends = decode(3, 1);
  ends.ended = {{kId, 0}};
  expect_refused(batch, ends, "was not started or has ended");
}

}  // namespace
}  // namespace demo
