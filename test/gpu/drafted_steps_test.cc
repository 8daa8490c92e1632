#include "gpu/transport/drafted_steps.h"

#include <moetap/error.h>

#include <gtest/gtest.h>

#include <vector>

namespace moetap {
namespace {

using Tokens = std::vector<std::int64_t>;

void add(DraftedSteps& steps, Step step, const RequestSpan& span) {
  steps.add({.step = step, .num_tokens = span.count, .requests = {&span, 1}});
}

TEST(DraftedSteps, AreForgottenOnceTheyAreAccepted) {
  DraftedSteps steps;
  add(steps, 1, {7, 2, 3, 2});
  add(steps, 2, {7, 4, 3, 2});
  add(steps, 3, {7, 5, 3, 2});
  const Tokens tokens{0, 2};
  const auto accepted = steps.accepted(2, 7, 6, tokens);
  ASSERT_TRUE(accepted.has_value());
  EXPECT_EQ(accepted->position, 4);
  EXPECT_EQ(Tokens(accepted->tokens.begin(), accepted->tokens.end()), Tokens{0});
  steps.forget(2, 7);
  for (const Step step : {Step(1), Step(2)})
    EXPECT_FALSE(steps.accepted(step, 7, 6, Tokens{0}).has_value());
  EXPECT_TRUE(steps.accepted(3, 7, 6, {}).has_value());
  steps.erase(7);
  EXPECT_FALSE(steps.accepted(3, 7, 6, {}).has_value());
}

// A begin_step() that threw is tried again.
TEST(DraftedSteps, OfAStepThatIsAddedAgainTheLastCounts) {
  DraftedSteps steps;
  add(steps, 1, {7, 2, 3, 2});
  add(steps, 1, {7, 2, 5, 4});
  EXPECT_TRUE(steps.accepted(1, 7, 5, Tokens{0, 4}).has_value());
}

}  // namespace
}  // namespace moetap
