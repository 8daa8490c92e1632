// Steps and graphs as an engine opens and closes them.
#include <moetap/capturer.h>
#include <moetap/error.h>
#include <moetap/topk_ids.h>

#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include "test/gpu/capturer_world.h"
#include "test/lib/throws.h"

namespace moetap {
namespace {

using test::CapturerTest;
using test::expect_throw;
using test::FakeTransport;

TEST_F(CapturerTest, StepsReachTheTransportInOrder) {
  Capturer& capturer = make(RankLayout::local);
  for (const Step step : {Step(1), Step(2), Step(5)}) {
    capturer.begin_step({.step = step, .num_tokens = 4}, stream);
    for (const int layer : {3, 5, 6}) capturer.capture(layer, ids(4), stream);
    capturer.publish(slots.data(), stream);
  }
  EXPECT_EQ(transport->steps, (std::vector<Step>{1, 2, 5}));
  EXPECT_EQ(stream.captures.size(), 9u);
  EXPECT_EQ(stream.captures[2].layer, 2);
  EXPECT_EQ(transport->published, 3);
  capturer.finalize(5, Milliseconds(1));
  EXPECT_EQ(transport->finalized, Step(5));
  capturer.end_request(8, RequestEnd::finished);
  EXPECT_EQ(transport->ended, RequestId(8));
}

TEST_F(CapturerTest, ReplayedStepNeedsNoCaptureCalls) {  // H3 is the device's to find
  Capturer& capturer = make(RankLayout::local);
  capturer.begin_step({.step = 1, .num_tokens = 4, .padded_tokens = 8}, stream);
  EXPECT_NO_THROW(capturer.publish(slots.data(), stream));
}

TEST_F(CapturerTest, DraftLayersCannotBeBoundOrCaptured) {  // H1
  Capturer& capturer = make(RankLayout::local);
  expect_throw<StateError>([&] { capturer.bind(5); }, {"layer 5", "already", "draft"});
  expect_throw<RangeError>([&] { capturer.bind(4); }, {"4", "3, 5, 6"});
  capturer.begin_step({.step = 1, .num_tokens = 4}, stream);
  expect_throw<RangeError>([&] { capturer.capture(7, ids(4), stream); }, {"7"});
  EXPECT_TRUE(stream.captures.empty());
}

TEST_F(CapturerTest, EveryLayerMustBeBoundBeforeAStepOrGraph) {  // H1, H3
  auto owned = std::make_unique<FakeTransport>();
  transport = owned.get();
  Capturer capturer(std::move(owned));
  capturer.bind(5);
  expect_throw<StateError>([&] { capturer.begin_step({.step = 1, .num_tokens = 4}, stream); },
                           {"3, 6", "bind()"});
  expect_throw<StateError>([&] { capturer.begin_graph(4); }, {"3, 6", "bind()"});
  EXPECT_TRUE(transport->steps.empty());
}

TEST_F(CapturerTest, MoreTokensThanTheCacheAreAnErrorBeforeAnythingIsWritten) {  // H4
  Capturer& capturer = make(RankLayout::local);
  expect_throw<RangeError>([&] { capturer.begin_step({.step = 1, .num_tokens = 17}, stream); },
                           {"17", "16"});
  expect_throw<RangeError>(
      [&] { capturer.begin_step({.step = 1, .num_tokens = 4, .padded_tokens = 18}, stream); },
      {"18", "16"});
  expect_throw<RangeError>([&] { capturer.begin_graph(19); }, {"19", "16"});
  EXPECT_TRUE(transport->steps.empty());
  capturer.begin_step({.step = 1, .num_tokens = 16}, stream);  // nothing was left open
}

TEST_F(CapturerTest, StepNumbersOnlyGrow) {
  make(RankLayout::local);
  expect_throw<StateError>([&] { capturer->begin_step({.step = 0, .num_tokens = 4}, stream); },
                           {"step 0"});
  capturer->begin_step({.step = 7, .num_tokens = 4}, stream);
  capturer->publish(slots.data(), stream);
  for (const Step step : {Step(6), Step(7)}) {
    expect_throw<StateError>([&] { capturer->begin_step({.step = step, .num_tokens = 4}, stream); },
                             {"step " + std::to_string(step.value()), "step 7"});
  }
  EXPECT_EQ(transport->steps, std::vector<Step>{7});
}

TEST_F(CapturerTest, CallsAtTheWrongTimeAreErrors) {
  make(RankLayout::local);
  const auto begin = [&] { capturer->begin_step({.step = 1, .num_tokens = 4}, stream); };
  const auto publish = [&] { capturer->publish(slots.data(), stream); };
  expect_throw<StateError>([&] { capturer->capture(3, ids(4), stream); }, {"begin_step()"});
  expect_throw<StateError>(publish, {"begin_step()"});
  expect_throw<StateError>([&] { capturer->end_graph(); }, {"begin_graph()"});
  begin();
  expect_throw<StateError>(begin, {"a step is open"});
  expect_throw<StateError>([&] { capturer->begin_graph(4); }, {"a step is open"});
  expect_throw<StateError>([&] { capturer->end_graph(); }, {"begin_graph()"});
  publish();
  expect_throw<ArgumentError>([&] { capturer->begin_graph(0); }, {"0 tokens"});
  capturer->begin_graph(4);
  expect_throw<StateError>([&] { capturer->begin_graph(4); }, {"a graph is open"});
  expect_throw<StateError>(begin, {"a graph is open"});
  expect_throw<StateError>(publish, {"begin_step()"});
  EXPECT_EQ(transport->steps.size(), 1u);
  EXPECT_EQ(transport->published, 1);
}

TEST_F(CapturerTest, RequestsMustCoverTheTokens) {
  make(RankLayout::local);
  const auto begin = [&](std::vector<RequestSpan> requests) {
    capturer->begin_step({.step = 1, .num_tokens = 4, .requests = requests}, stream);
  };
  expect_throw<ArgumentError>([&] { begin({{7, 0, 3}}); }, {"1 of the step's 4"});
  expect_throw<ArgumentError>([&] { begin({{7, 0, 3}, {8, 5, 2}}); }, {"request 8", "2 tokens"});
  expect_throw<ArgumentError>([&] { begin({{7, -1, 4}}); }, {"request 7", "-1"});
  expect_throw<ArgumentError>([&] { begin({{7, 0, 4}, {8, 0, 0}}); }, {"request 8", "0 tokens"});
  expect_throw<ArgumentError>([&] { begin({{7, 3, 4, 4}}); }, {"request 7", "4 drafts", "0 to 3"});
  expect_throw<ArgumentError>([&] { begin({{7, 3, 4, -1}}); }, {"request 7", "-1 drafts"});
  EXPECT_TRUE(transport->steps.empty());
  EXPECT_NO_THROW(begin({{7, 0, 3, 2}, {8, 5, 1}}));
}

TEST_F(CapturerTest, WantedTokensMustBeRangesOfTheStepInOrder) {
  make(RankLayout::local);
  const auto begin = [&](std::vector<TokenRange> wanted) {
    capturer->begin_step({.step = 1, .num_tokens = 8, .padded_tokens = 12, .wanted = wanted},
                         stream);
  };
  const auto refused = [&](const std::vector<TokenRange>& wanted, std::string_view range,
                           std::string_view limits) {
    expect_throw<ArgumentError>([&] { begin(wanted); }, {"step 1", range, limits, "sort and join"});
    EXPECT_TRUE(transport->steps.empty());
  };
  refused({{-1, 3}}, "[-1, 3)", "[0, 8)");
  refused({{0, 3}, {3, 9}}, "[3, 9)", "[3, 8)");
  refused({{8, 9}}, "[8, 9)", "[0, 8)");  // padding is no request's (H2)
  refused({{4, 4}}, "[4, 4)", "[0, 8)");
  refused({{4, 3}}, "[4, 3)", "[0, 8)");
  refused({{0, 3}, {2, 4}}, "[2, 4)", "[3, 8)");
  refused({{4, 6}, {0, 2}}, "[0, 2)", "[6, 8)");
  EXPECT_NO_THROW(begin({{0, 3}, {3, 4}, {6, 8}}));
}

TEST_F(CapturerTest, StepOfWhichNothingIsWantedIsNotPublished) {
  make(RankLayout::local);
  const std::span<const TokenRange> none;
  capturer->begin_step({.step = 1, .num_tokens = 4, .wanted = none}, stream);
  for (const int layer : {3, 5, 6}) capturer->capture(layer, ids(4), stream);
  transport->busy = true;
  EXPECT_NO_THROW(capturer->publish(nullptr, stream));
  expect_throw<StateError>([&] { capturer->publish(slots.data(), stream); }, {"begin_step()"});
  EXPECT_EQ(stream.captures.size(), 3u);  // whose addresses graphs hold
  transport->busy = false;
  capturer->begin_step({.step = 2, .num_tokens = 4}, stream);
  capturer->publish(slots.data(), stream);
  EXPECT_EQ(transport->steps, (std::vector<Step>{1, 2}));
  EXPECT_EQ(transport->published, 1);
  EXPECT_EQ(stream.ended, 2);
}

TEST_F(CapturerTest, StepWithoutTokensIsLegal) {
  make(RankLayout::local).begin_step({.step = 1}, stream);
  capturer->capture(3, {nullptr, IdType::int32, 0, 2, 2}, stream);
  EXPECT_NO_THROW(capturer->publish(nullptr, stream));
  EXPECT_EQ(transport->published, 1);
}

TEST_F(CapturerTest, NothingIsOpenAfterBeginStepThrew) {
  make(RankLayout::local);
  const StepInfo step{.step = 2, .num_tokens = 4};
  transport->busy = true;
  expect_throw<TimeoutError>([&] { capturer->begin_step(step, stream); }, {"be told"});
  expect_throw<StateError>([&] { capturer->publish(slots.data(), stream); }, {"begin_step()"});
  transport->busy = false;
  EXPECT_NO_THROW(capturer->begin_step(step, stream));
}

TEST_F(CapturerTest, StepStaysOpenWhenTimeRanOut) {  // H14
  make(RankLayout::local).begin_step({.step = 2, .num_tokens = 4}, stream);
  const auto publish = [&] { capturer->publish(slots.data(), stream); };
  const auto begin_next = [&] { capturer->begin_step({.step = 3, .num_tokens = 4}, stream); };
  transport->busy = true;
  expect_throw<TimeoutError>(publish, {});
  expect_throw<StateError>(begin_next, {"publish()", "give_up()"});
  transport->busy = false;
  EXPECT_NO_THROW(publish());
  EXPECT_EQ(transport->published, 1);
  EXPECT_NO_THROW(begin_next());
}

TEST_F(CapturerTest, HasTheFailuresOfItsTransport) {
  make(RankLayout::local).begin_step({.step = 7, .num_tokens = 4}, stream);
  capturer->give_up(nullptr, stream);
  const std::vector<StepFailed> failures = capturer->take_failures();
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_EQ(failures[0].step(), Step(7));
  EXPECT_TRUE(capturer->take_failures().empty());
  EXPECT_EQ(capturer->num_failed(), 1u);
}

TEST_F(CapturerTest, ComparesAllPicksIfToldTo) {  // H32
  for (const bool all : {false, true}) {
    Capturer own(std::make_unique<FakeTransport>(), {.compare_all_picks = all});
    for (const int layer : {3, 5, 6}) own.bind(layer);
    own.begin_step({.step = 1, .num_tokens = 4}, stream);
    own.capture(5, ids(4), stream);
    EXPECT_EQ(stream.captures.back().distinct, all ? Distinct::all : Distinct::first_two);
  }
}

TEST_F(CapturerTest, PublishWithoutSlotsLeavesTheStepOpen) {
  make(RankLayout::local).begin_step({.step = 1, .num_tokens = 4}, stream);
  expect_throw<ArgumentError>([&] { capturer->publish(nullptr, stream); }, {"null", "4 tokens"});
  EXPECT_EQ(transport->published, 0);
  EXPECT_NO_THROW(capturer->publish(slots.data(), stream));
}

TEST(CapturerOptionsTest, ThatCannotWorkAreErrors) {
  const auto make = [](CapturerOptions options) {
    Capturer(std::make_unique<FakeTransport>(), options);
  };
  expect_throw<ArgumentError>([&] { make({.dp_rank = 2, .dp_size = 2}); }, {"dp_rank 2", "2"});
  expect_throw<ArgumentError>([&] { make({.dp_rank = -1, .dp_size = 2}); }, {"dp_rank -1"});
  expect_throw<ArgumentError>([&] { make({.dp_size = 0}); }, {"dp_size 0"});
  expect_throw<ArgumentError>([&] { make({.shared_expert_columns = -1}); }, {"-1"});
  expect_throw<ArgumentError>([] { Capturer(nullptr); }, {"null"});
}

TEST(CapturerSingleton, LivesFromCreateToDestroy) {
  Capturer::destroy();
  expect_throw<StateError>([] { Capturer::instance(); }, {"Capturer", "create()"});
  Capturer& capturer = Capturer::create(std::make_unique<FakeTransport>());
  EXPECT_EQ(&Capturer::instance(), &capturer);
  expect_throw<StateError>([] { Capturer::create(std::make_unique<FakeTransport>()); },
                           {"Capturer", "destroy()"});
  EXPECT_EQ(&Capturer::instance(), &capturer);
  Capturer::destroy();
  expect_throw<StateError>([] { Capturer::instance(); }, {"create()"});
  expect_throw<ArgumentError>([] { Capturer::create(nullptr); }, {"null"});
  EXPECT_NO_THROW(Capturer::create(std::make_unique<FakeTransport>()));
  Capturer::destroy();
}

TEST(CapturerSingleton, OnlyOneOfManyThreadsCreatesIt) {
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> created{0};
    std::atomic<int> refused{0};
    std::vector<std::thread> threads;
    threads.reserve(4);
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        try {
          Capturer::create(std::make_unique<FakeTransport>());
          ++created;
        } catch (const StateError&) {
          ++refused;
        }
        Capturer::instance();
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(created, 1);
    EXPECT_EQ(refused, 3);
    Capturer::destroy();
  }
}

TEST_F(CapturerTest, GivesNothingToALayerThatIsNotBound) {  // H1
  Capturer unbound(std::make_unique<FakeTransport>());
  RouteSink sink{};
  expect_throw<StateError>([&] { unbound.route_sink(5, sink); }, {"layer 5", "bind()"});
  expect_throw<StateError>([&] { unbound.route_output(5); }, {"layer 5", "bind()"});
  EXPECT_FALSE(unbound.bound(5));
}

}  // namespace
}  // namespace moetap
