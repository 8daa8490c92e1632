// Which rows, columns and types each layout takes (H5, H13, H27).
#include <moetap/capturer.h>
#include <moetap/error.h>
#include <moetap/topk_ids.h>

#include <limits>
#include <string>
#include <vector>

#include "test/gpu/capturer_world.h"
#include "test/lib/throws.h"

namespace moetap {
namespace {

using test::CapturerTest;
using test::expect_throw;

TEST_F(CapturerTest, TakesTheWeightsOfTheShapeOnly) {
  const auto type_is = [&](WeightType held, WeightType given) {
    Capturer& c = make(RankLayout::local, 0, held);
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
      EXPECT_TRUE(stream.captures.empty());
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

TEST_F(CapturerTest, LocalLayoutTakesThisRanksRowsOnly) {  // H5
  make(RankLayout::local).begin_step({.step = 1, .num_tokens = 4, .padded_tokens = 8}, stream);
  for (const std::int64_t rows : {3, 5, 7, 9, 12, 24}) {
    expect_rows(rows, false, {"4 (this rank's) or 8 (padded)"});
  }
  expect_rows(4, true, {});
  expect_rows(8, true, {});
  EXPECT_EQ(stream.captures.back().first_row, 0);
}

TEST_F(CapturerTest, ConcatenatedLayoutTakesAllRanksRealTokens) {  // H5
  const std::int64_t dp_tokens[] = {5, 4, 2};
  make(RankLayout::concatenated)
      .begin_step({.step = 1, .num_tokens = 4, .padded_tokens = 8, .dp_tokens = dp_tokens}, stream);
  EXPECT_EQ(stream.steps.back().dp_row, 5);
  for (const std::int64_t rows : {4, 8, 10, 12, 24}) {
    expect_rows(rows, false, {"11 (the sum of dp_tokens)"});
  }
  expect_rows(11, true, {});
  EXPECT_EQ(stream.captures.back().first_row, DeviceCache::kRowFromStep);
}

TEST_F(CapturerTest, PaddedLayoutTakesAllRanksPaddedTokens) {  // H5
  make(RankLayout::padded).begin_step({.step = 1, .num_tokens = 4, .padded_tokens = 8}, stream);
  EXPECT_EQ(stream.steps.back().dp_row, 0);
  for (const std::int64_t rows : {4, 8, 12, 23, 25}) {
    expect_rows(rows, false, {"24 (3 ranks of 8 padded tokens)"});
  }
  expect_rows(24, true, {}, 16);  // what follows this rank's rows is out of reach
  EXPECT_EQ(stream.captures.back().first_row, 8);
}

TEST_F(CapturerTest, GraphOfALocalLayoutTakesPaddedRows) {  // H5, H13
  make(RankLayout::local).begin_graph(8);
  for (const std::int64_t rows : {0, 4, 24}) expect_rows(rows, false, {"8 (this rank's)"});
  expect_rows(8, true, {});
  EXPECT_EQ(stream.captures.back().first_row, 0);
  capturer->end_graph();
  EXPECT_TRUE(transport->steps.empty());
}

TEST_F(CapturerTest, GraphOfAPaddedLayoutHasAFixedFirstRow) {  // H5, H13
  make(RankLayout::padded).begin_graph(8);
  for (const std::int64_t rows : {8, 23}) expect_rows(rows, false, {"24 (3 ranks of 8"});
  expect_rows(24, true, {}, 16);  // what follows this rank's rows is out of reach
  EXPECT_EQ(stream.captures.back().first_row, 8);
}

TEST_F(CapturerTest, GraphOfAConcatenatedLayoutReadsItsFirstRowFromTheStep) {  // H5, H13
  make(RankLayout::concatenated).begin_graph(8);
  for (const std::int64_t rows : {7, 25}) expect_rows(rows, false, {"8 to 24 (all ranks')"});
  expect_rows(8, true, {});
  expect_rows(24, true, {});
  EXPECT_EQ(stream.captures.back().first_row, DeviceCache::kRowFromStep);
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
  EXPECT_EQ(stream.captures.size(), 1u);
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
  EXPECT_TRUE(stream.captures.empty());
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

TEST_F(CapturerTest, GivesASinkTheRowsOfThisRankInEachLayout) {  // H5, H13
  RouteSink sink{};
  make(RankLayout::local).route_sink(5, sink);
  EXPECT_EQ(sink.layer, 1);
  EXPECT_EQ(sink.first_row, 0);
  EXPECT_EQ(sink.end_row, DeviceCache::kAllRows);

  make(RankLayout::concatenated).route_sink(6, sink);
  EXPECT_EQ(sink.layer, 2);
  EXPECT_EQ(sink.first_row, DeviceCache::kRowFromStep);

  // The next rank's rows lie after this one's.
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
  const RouteOutput output = make(RankLayout::local).route_output(5);
  EXPECT_EQ(output.rows, 16);
  EXPECT_EQ(output.columns, 2);
  for (const RankLayout layout : {RankLayout::concatenated, RankLayout::padded}) {
    make(layout);
    expect_throw<ArgumentError>([&] { capturer->route_output(5); }, {"layer 5", "3 ranks"});
  }
}

}  // namespace
}  // namespace moetap
