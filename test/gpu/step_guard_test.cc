// Whatever is thrown in a step or a graph, the next one can begin (H37).
#include <moetap/capturer.h>
#include <moetap/error.h>
#include <moetap/topk_ids.h>

#include <stdexcept>
#include <utility>
#include <vector>

#include "test/gpu/capturer_world.h"
#include "test/lib/throws.h"

namespace moetap {
namespace {

using test::CapturerTest;
using test::expect_throw;

class StepGuardTest : public CapturerTest {  // H37
 protected:
  StepGuardTest() { make(RankLayout::local); }

  // The forward pass of a step throws.
  void lose(const StepInfo& step) {
    try {
      const StepGuard open(*capturer, step, stream);
      capturer->capture(5, ids(4), stream);
      throw std::runtime_error("out of memory");
    } catch (const std::runtime_error&) {
    }
  }
  using GivenUp = std::vector<std::pair<Step, const Slot*>>;
};

TEST_F(StepGuardTest, AGraphThatCouldNotBeRecordedIsNoneAnyMore) {
  try {
    const GraphGuard recording(*capturer, 4);
    capturer->capture(3, ids(4), stream);
    throw std::runtime_error("out of memory");
  } catch (const std::runtime_error&) {
  }
  EXPECT_NO_THROW(const GraphGuard again(*capturer, 4));
  EXPECT_NO_THROW(capturer->begin_step({.step = 1, .num_tokens = 4}, stream));
  expect_throw<StateError>([&] { const GraphGuard in_a_step(*capturer, 4); }, {"a step is open"});
  EXPECT_NO_THROW(capturer->publish(slots.data(), stream)) << "which stays open";
}

TEST_F(StepGuardTest, GivesUpAStepThatThrew) {
  lose({.step = 1, .num_tokens = 4});
  EXPECT_EQ(transport->given_up, (GivenUp{{1, nullptr}}));
  EXPECT_EQ(transport->published, 0);
  StepGuard next(*capturer, {.step = 2, .num_tokens = 4}, stream);  // nothing is in its way
  next.publish(slots.data());
  EXPECT_EQ(transport->published, 1);
}

TEST_F(StepGuardTest, LeavesAPublishedStepAlone) {
  {
    StepGuard open(*capturer, {.step = 1, .num_tokens = 4}, stream);
    open.publish(slots.data());
    EXPECT_EQ(transport->published, 1);
    capturer->begin_step({.step = 2, .num_tokens = 4}, stream);  // of no guard
  }
  EXPECT_TRUE(transport->given_up.empty());
  capturer->publish(slots.data(), stream);
}

TEST_F(StepGuardTest, KnowsTheSlotsOfAStepThatCouldNotBePublished) {
  {
    StepGuard open(*capturer, {.step = 1, .num_tokens = 4}, stream);
    transport->busy = true;
    expect_throw<TimeoutError>([&] { open.publish(slots.data()); }, {});
    transport->busy = false;
  }
  EXPECT_EQ(transport->given_up, (GivenUp{{1, slots.data()}}));
}

TEST_F(StepGuardTest, MayPublishAgain) {
  StepGuard open(*capturer, {.step = 1, .num_tokens = 4}, stream);
  transport->busy = true;
  expect_throw<TimeoutError>([&] { open.publish(slots.data()); }, {});
  transport->busy = false;
  open.publish(slots.data());
  EXPECT_EQ(transport->published, 1);
}

TEST_F(StepGuardTest, OnlyClosesAStepOfWhichNothingIsWanted) {
  const std::span<const TokenRange> none;
  for (const Step step : {Step(1), Step(2)}) {
    stream.recording = step == 2;  // and so it cannot be
    const StepGuard open(*capturer, {.step = step, .num_tokens = 4, .wanted = none}, stream);
  }
  EXPECT_TRUE(transport->given_up.empty());
  EXPECT_EQ(stream.ended, 1);
  EXPECT_NO_THROW(capturer->begin_step({.step = 3, .num_tokens = 4}, stream));
}

TEST_F(StepGuardTest, OpensNothingThatCannotBegin) {
  transport->busy = true;
  expect_throw<TimeoutError>(
      [&] { const StepGuard open(*capturer, {.step = 1, .num_tokens = 4}, stream); }, {});
  transport->busy = false;
  EXPECT_TRUE(transport->given_up.empty());
  capturer->give_up(nullptr, stream);  // no step, so nothing
  EXPECT_TRUE(transport->given_up.empty());
  EXPECT_NO_THROW(capturer->begin_step({.step = 1, .num_tokens = 4}, stream));
}

}  // namespace
}  // namespace moetap
