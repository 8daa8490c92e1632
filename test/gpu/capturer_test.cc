#include <moetap/capturer.h>
#include <moetap/error.h>
#include <moetap/topk_ids.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "test/lib/throws.h"

namespace moetap {

// The Capturer only passes streams on, so that it needs no device and neither do its tests.
class Stream {};
struct RouteSink {
  int layer;
  std::int64_t first_row, end_row;
  int shared_columns;
};

namespace {

using test::expect_throw;

// Records the calls that got past the Capturer's checks.
class FakeTransport final : public CaptureTransport {
 public:
  struct Capture {
    int layer;
    std::int64_t rows;
    std::int64_t first_row;
  };

  const ModelShape& shape() const override { return shape_; }
  std::int64_t max_tokens() const override { return 16; }
  void begin_step(const StepInfo& step, std::int64_t row, Stream&) override {
    if (busy) throw TimeoutError("the step before cannot be told");
    steps.push_back(step.step);
    dp_row = row;
  }
  void capture(int layer, const TopkIds& ids, std::int64_t first_row, Stream&) override {
    captures.push_back({layer, ids.rows, first_row});
  }
  void route_sink(int layer, std::int64_t first_row, std::int64_t end_row, int shared_columns,
                  RouteSink& sink) override {
    sink = {layer, first_row, end_row, shared_columns};
  }
  RouteOutput route_output(int layer) override { return {nullptr, layer, 2}; }
  void publish(const Slot*, Stream&) override {
    if (busy) throw TimeoutError("the ring is full");
    ++published;
  }
  void skip_step(Stream&) override {
    if (recording) throw StateError("the stream records a graph");
    ++skipped;
  }
  void give_up(const Slot* slots, Stream&) noexcept override {
    given_up.emplace_back(steps.back(), slots);
  }
  std::vector<StepFailed> take_failures() override { return {StepFailed(7, "of a fake")}; }
  std::uint64_t num_failed() const override { return 9; }
  void compare_all_picks() override { compares_all = true; }
  void finalize(Step step, Milliseconds) override { finalized = step; }
  void end_request(std::uint64_t request, RequestEnd) override { ended = request; }

  bool busy = false;
  bool recording = false;
  bool compares_all = false;
  std::vector<Step> steps;
  std::int64_t dp_row = -1;
  std::vector<Capture> captures;
  int published = 0;
  int skipped = 0;
  std::vector<std::pair<Step, const Slot*>> given_up;
  Step finalized = 0;
  std::uint64_t ended = 0;

 private:
  friend class CapturerTest;
  ModelShape shape_{{3, 5, 6}, 2, 300};
};

class CapturerTest : public testing::Test {
 protected:
  // Of this rank 1 of 3, with every layer bound.
  Capturer& make(RankLayout layout, int shared_expert_columns = 0) {
    auto owned = std::make_unique<FakeTransport>();
    transport = owned.get();
    capturer = std::make_unique<Capturer>(std::move(owned),
                                          CapturerOptions{1, 3, layout, shared_expert_columns});
    for (const int layer : {3, 5, 6}) capturer->bind(layer);
    return *capturer;
  }

  void set_weights(WeightType type) { transport->shape_ = transport->shape_.with_weights(type); }

  TopkIds ids(std::int64_t rows, std::int64_t columns = 2) const {
    return {memory.data(), IdType::int32, rows, columns, columns};
  }

  void expect_rows(std::int64_t rows, bool allowed, std::initializer_list<std::string_view> words,
                   std::int64_t passed_on = 0) {
    SCOPED_TRACE(rows);
    const std::size_t before = transport->captures.size();
    if (allowed) {
      EXPECT_NO_THROW(capturer->capture(5, ids(rows), stream));
      ASSERT_EQ(transport->captures.size(), before + 1);
      EXPECT_EQ(transport->captures.back().layer, 1);
      EXPECT_EQ(transport->captures.back().rows, passed_on == 0 ? rows : passed_on);
      return;
    }
    expect_throw<ArgumentError>([&] { capturer->capture(5, ids(rows), stream); },
                                {"layer 5", std::to_string(rows) + " rows"});
    expect_throw<ArgumentError>([&] { capturer->capture(5, ids(rows), stream); }, words);
    EXPECT_EQ(transport->captures.size(), before);
  }

  std::array<std::int32_t, 256> memory{};
  std::array<Slot, 16> slots{};
  Stream stream;
  FakeTransport* transport = nullptr;
  std::unique_ptr<Capturer> capturer;
};

TEST_F(CapturerTest, TakesTheWeightsOfTheShapeOnly) {
  const auto type_is = [&](WeightType held, WeightType given) {
    Capturer& c = make(RankLayout::local);
    set_weights(held);
    c.begin_step({.step = 1, .num_tokens = 4}, stream);
    TopkIds picks = ids(4);
    if (given != WeightType::none) picks.weights = {memory.data(), given, 2};
    try {
      c.capture(5, picks, stream);
    } catch (const ArgumentError& error) {
      EXPECT_TRUE(std::string(error.what())
                      .starts_with("layer 5: topk_ids with weights of type " +
                                   std::string(weight_type_name(given))))
          << error.what();
      EXPECT_TRUE(transport->captures.empty());
      return false;
    }
    return true;
  };
  using enum WeightType;
  EXPECT_TRUE(type_is(none, none) && type_is(float32, float32) && type_is(bfloat16, bfloat16));
  EXPECT_TRUE(type_is(bfloat16, float32));  // rounded
  EXPECT_FALSE(type_is(none, float32) || type_is(none, bfloat16) || type_is(float32, none));
  EXPECT_FALSE(type_is(float32, bfloat16) || type_is(bfloat16, none));
}

TEST_F(CapturerTest, StepsReachTheTransportInOrder) {
  Capturer& capturer = make(RankLayout::local);
  for (const Step step : {1, 2, 5}) {
    capturer.begin_step({.step = step, .num_tokens = 4}, stream);
    for (const int layer : {3, 5, 6}) capturer.capture(layer, ids(4), stream);
    capturer.publish(slots.data(), stream);
  }
  EXPECT_EQ(transport->steps, (std::vector<Step>{1, 2, 5}));
  EXPECT_EQ(transport->captures.size(), 9u);
  EXPECT_EQ(transport->captures[2].layer, 2);
  EXPECT_EQ(transport->published, 3);
  capturer.finalize(5, Milliseconds(1));
  EXPECT_EQ(transport->finalized, 5u);
  capturer.end_request(8, RequestEnd::finished);
  EXPECT_EQ(transport->ended, 8u);
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
  EXPECT_TRUE(transport->captures.empty());
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

TEST_F(CapturerTest, LocalLayoutTakesThisRanksRowsOnly) {  // H5
  make(RankLayout::local).begin_step({.step = 1, .num_tokens = 4, .padded_tokens = 8}, stream);
  for (const std::int64_t rows : {3, 5, 7, 9, 12, 24}) {
    expect_rows(rows, false, {"4 (this rank's) or 8 (padded)"});
  }
  expect_rows(4, true, {});
  expect_rows(8, true, {});
  EXPECT_EQ(transport->captures.back().first_row, 0);
}

TEST_F(CapturerTest, ConcatenatedLayoutTakesAllRanksRealTokens) {  // H5
  const std::int64_t dp_tokens[] = {5, 4, 2};
  make(RankLayout::concatenated)
      .begin_step({.step = 1, .num_tokens = 4, .padded_tokens = 8, .dp_tokens = dp_tokens}, stream);
  EXPECT_EQ(transport->dp_row, 5);
  for (const std::int64_t rows : {4, 8, 10, 12, 24}) {
    expect_rows(rows, false, {"11 (the sum of dp_tokens)"});
  }
  expect_rows(11, true, {});
  EXPECT_EQ(transport->captures.back().first_row, CaptureTransport::kRowFromStep);
}

TEST_F(CapturerTest, PaddedLayoutTakesAllRanksPaddedTokens) {  // H5
  make(RankLayout::padded).begin_step({.step = 1, .num_tokens = 4, .padded_tokens = 8}, stream);
  EXPECT_EQ(transport->dp_row, 0);
  for (const std::int64_t rows : {4, 8, 12, 23, 25}) {
    expect_rows(rows, false, {"24 (3 ranks of 8 padded tokens)"});
  }
  expect_rows(24, true, {}, 16);  // what is behind this rank's rows is out of reach
  EXPECT_EQ(transport->captures.back().first_row, 8);
}

TEST_F(CapturerTest, GraphOfALocalLayoutTakesPaddedRows) {  // H5, H13
  make(RankLayout::local).begin_graph(8);
  for (const std::int64_t rows : {0, 4, 24}) expect_rows(rows, false, {"8 (this rank's)"});
  expect_rows(8, true, {});
  EXPECT_EQ(transport->captures.back().first_row, 0);
  capturer->end_graph();
  EXPECT_TRUE(transport->steps.empty());
}

TEST_F(CapturerTest, GraphOfAPaddedLayoutHasAFixedFirstRow) {  // H5, H13
  make(RankLayout::padded).begin_graph(8);
  for (const std::int64_t rows : {8, 23}) expect_rows(rows, false, {"24 (3 ranks of 8"});
  expect_rows(24, true, {}, 16);  // what is behind this rank's rows is out of reach
  EXPECT_EQ(transport->captures.back().first_row, 8);
}

TEST_F(CapturerTest, GraphOfAConcatenatedLayoutReadsItsFirstRowFromTheStep) {  // H5, H13
  make(RankLayout::concatenated).begin_graph(8);
  for (const std::int64_t rows : {7, 25}) expect_rows(rows, false, {"8 to 24 (all ranks')"});
  expect_rows(8, true, {});
  expect_rows(24, true, {});
  EXPECT_EQ(transport->captures.back().first_row, CaptureTransport::kRowFromStep);
}

TEST_F(CapturerTest, ColumnsAreTopKAndTheDeclaredSharedExperts) {  // H27
  make(RankLayout::local).begin_step({.step = 1, .num_tokens = 4}, stream);
  for (const std::int64_t columns : {1, 3}) {
    expect_throw<ArgumentError>(
        [&] { capturer->capture(3, ids(4, columns), stream); },
        {"layer 3", std::to_string(columns) + " columns", "are 2", "shared_expert_columns"});
  }
  make(RankLayout::local, 1).begin_step({.step = 1, .num_tokens = 4}, stream);
  EXPECT_NO_THROW(capturer->capture(3, ids(4, 3), stream));
  for (const std::int64_t columns : {2, 4}) {
    expect_throw<ArgumentError>([&] { capturer->capture(3, ids(4, columns), stream); }, {"are 3"});
  }
  EXPECT_EQ(transport->captures.size(), 1u);
}

TEST_F(CapturerTest, TopkIdsThatCannotBeReadAreAnError) {
  make(RankLayout::local).begin_step({.step = 1, .num_tokens = 4}, stream);
  TopkIds bad = ids(4);
  bad.row_stride = 1;
  expect_throw<ArgumentError>([&] { capturer->capture(3, bad, stream); }, {"stride", "1", "2"});
  bad = ids(4);
  bad.data = nullptr;
  expect_throw<ArgumentError>([&] { capturer->capture(3, bad, stream); }, {"null", "4 rows"});
  bad = ids(4);
  bad.type = IdType::uint8;  // H21: 300 experts
  expect_throw<ArgumentError>([&] { capturer->capture(3, bad, stream); }, {"uint8", "300"});
  EXPECT_TRUE(transport->captures.empty());
}

TEST_F(CapturerTest, StepNumbersOnlyGrow) {
  make(RankLayout::local);
  expect_throw<StateError>([&] { capturer->begin_step({.step = 0, .num_tokens = 4}, stream); },
                           {"step 0"});
  capturer->begin_step({.step = 7, .num_tokens = 4}, stream);
  capturer->publish(slots.data(), stream);
  for (const Step step : {6, 7}) {
    expect_throw<StateError>([&] { capturer->begin_step({.step = step, .num_tokens = 4}, stream); },
                             {"step " + std::to_string(step), "step 7"});
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

TEST_F(CapturerTest, TokenCountsThatContradictEachOtherAreErrors) {  // H5
  make(RankLayout::concatenated);
  const auto begin = [&](std::int64_t tokens, std::int64_t padded, std::vector<std::int64_t> dp) {
    capturer->begin_step(
        {.step = 1, .num_tokens = tokens, .padded_tokens = padded, .dp_tokens = dp}, stream);
  };
  expect_throw<ArgumentError>([&] { begin(-1, 0, {0, -1, 0}); }, {"num_tokens is -1"});
  expect_throw<ArgumentError>([&] { begin(4, 3, {0, 4, 0}); }, {"4", "padded_tokens 3"});
  expect_throw<ArgumentError>([&] { begin(4, -4, {0, 4, 0}); }, {"padded_tokens -4"});
  expect_throw<ArgumentError>([&] { begin(4, 0, {}); }, {"0 entries", "3"});
  expect_throw<ArgumentError>([&] { begin(4, 0, {4, 4, 4, 4}); }, {"4 entries", "3"});
  expect_throw<ArgumentError>([&] { begin(4, 0, {4, 5, 4}); }, {"5 tokens", "num_tokens says 4"});
  expect_throw<ArgumentError>([&] { begin(4, 0, {-3, 4, 4}); }, {"-3 tokens for rank 0"});
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  expect_throw<ArgumentError>([&] { begin(4, 0, {kMost, 4, 4}); }, {"for rank 1"});
  EXPECT_TRUE(transport->steps.empty());
  EXPECT_NO_THROW(begin(4, 0, {0, 4, 0}));
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
  EXPECT_TRUE(transport->steps.empty());
  EXPECT_NO_THROW(begin({{7, 0, 3}, {8, 5, 1}}));
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
  refused({{8, 9}}, "[8, 9)", "[0, 8)");  // padding is nobody's (H2)
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
  EXPECT_EQ(transport->captures.size(), 3u);  // whose addresses graphs hold
  transport->busy = false;
  capturer->begin_step({.step = 2, .num_tokens = 4}, stream);
  capturer->publish(slots.data(), stream);
  EXPECT_EQ(transport->steps, (std::vector<Step>{1, 2}));
  EXPECT_EQ(transport->published, 1);
  EXPECT_EQ(transport->skipped, 1);
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
  make(RankLayout::local);
  ASSERT_EQ(capturer->take_failures().size(), 1u);
  EXPECT_EQ(capturer->take_failures()[0].step(), 7u);
  EXPECT_EQ(capturer->num_failed(), 9u);
}

TEST_F(CapturerTest, ComparesAllPicksIfToldTo) {  // H32
  make(RankLayout::local);
  EXPECT_FALSE(transport->compares_all);
  auto owned = std::make_unique<FakeTransport>();
  FakeTransport& checked = *owned;
  const Capturer own(std::move(owned), {.compare_all_picks = true});
  EXPECT_TRUE(checked.compares_all);
}

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
    capturer->begin_step({.step = 2, .num_tokens = 4}, stream);  // of nobody's guard
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
  for (const Step step : {1, 2}) {
    transport->recording = step == 2;  // and so it cannot be
    const StepGuard open(*capturer, {.step = step, .num_tokens = 4, .wanted = none}, stream);
  }
  EXPECT_TRUE(transport->given_up.empty());
  EXPECT_EQ(transport->skipped, 1);
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

TEST_F(CapturerTest, GivesASinkTheRowsOfThisRankInEachLayout) {  // H5, H13
  RouteSink sink{};
  make(RankLayout::local).route_sink(5, sink);
  EXPECT_EQ(sink.layer, 1);
  EXPECT_EQ(sink.first_row, 0);
  EXPECT_EQ(sink.end_row, CaptureTransport::kAllRows);

  make(RankLayout::concatenated).route_sink(6, sink);
  EXPECT_EQ(sink.layer, 2);
  EXPECT_EQ(sink.first_row, CaptureTransport::kRowFromStep);

  // The next rank's rows lie behind this one's.
  make(RankLayout::padded);
  expect_throw<StateError>([&] { capturer->route_sink(3, sink); }, {"layer 3", "begin_graph()"});
  capturer->begin_graph(8);
  capturer->route_sink(3, sink);
  EXPECT_EQ(sink.first_row, 8);
  EXPECT_EQ(sink.end_row, 16);
}

TEST_F(CapturerTest, TellsASinkHowManyPicksAreOfSharedExperts) {  // H27
  RouteSink sink{};
  for (const RankLayout layout :
       {RankLayout::local, RankLayout::concatenated, RankLayout::padded}) {
    make(layout, 2);
    if (layout == RankLayout::padded) capturer->begin_graph(8);
    capturer->route_sink(3, sink);
    EXPECT_EQ(sink.shared_columns, 2);
  }
}

TEST_F(CapturerTest, GivesARoutingOutputInTheLocalLayoutOnly) {
  EXPECT_EQ(make(RankLayout::local).route_output(5).rows, 1);
  for (const RankLayout layout : {RankLayout::concatenated, RankLayout::padded}) {
    make(layout);
    expect_throw<ArgumentError>([&] { capturer->route_output(5); }, {"layer 5", "3 ranks"});
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
