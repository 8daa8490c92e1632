#include <moetap/error.h>
#include <moetap/routes.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "test/lib/sample_routes.h"
#include "test/lib/throws.h"

namespace moetap {
namespace {

using test::expect_throw;
using test::sample_id;
using test::sample_routes;

const ModelShape kNarrow({1, 4}, 3, 256);
const ModelShape kWide({1, 4}, 3, 512);

TEST(Routes, StartMissingInEveryByte) {
  const Routes routes(kWide, {5, 8});
  EXPECT_EQ(routes.bytes().size(), 3 * kWide.row_bytes());
  EXPECT_TRUE(std::all_of(routes.bytes().begin(), routes.bytes().end(),
                          [](std::byte byte) { return byte == std::byte{0xFF}; }));
  EXPECT_EQ(routes.count(RowState::missing), 3u);
  EXPECT_FALSE(routes.all_present());
}

TEST(Routes, RefuseARangeThatIsNone) {
  expect_throw<ArgumentError>([] { Routes(kNarrow, {-1, 3}); }, {"[-1, 3)"});
  expect_throw<ArgumentError>([] { Routes(kNarrow, {4, 3}); }, {"[4, 3)"});
}

// Its bytes would not even fit into a number.
TEST(Routes, RefuseMoreRowsThanThereIsMemory) {
  for (const std::int64_t end :
       {std::int64_t{1} << 47, std::int64_t{1} << 61, std::numeric_limits<std::int64_t>::max()}) {
    expect_throw<ArgumentError>(
        [&] {
          Routes(kNarrow, {0, end});
        },
        {"[0, " + std::to_string(end) + ")", "at most"});
  }
}

TEST(Routes, AreReadByPosition) {
  for (const ModelShape& shape : {kNarrow, kWide}) {
    const Routes routes = sample_routes(shape, {5, 9});
    for (std::int64_t position = 5; position < 9; ++position) {
      EXPECT_EQ(routes.row(position).size(), shape.row_bytes());
      EXPECT_EQ(routes.row(position).data() - routes.bytes().data(),
                (position - 5) * static_cast<std::int64_t>(shape.row_bytes()));
      for (int layer = 0; layer < 2; ++layer) {
        for (int k = 0; k < 3; ++k) {
          EXPECT_EQ(routes.id(position, layer, k), sample_id(shape, position, layer, k));
        }
      }
    }
  }
}

TEST(Routes, OutsideTheRangeIsAnError) {
  const Routes routes = sample_routes(kNarrow, {5, 9});
  expect_throw<RangeError>([&] { routes.row(4); }, {"4", "[5, 9)"});
  expect_throw<RangeError>([&] { routes.state(9); }, {"9", "[5, 9)"});
  expect_throw<RangeError>([&] { routes.id(5, 2, 0); }, {"layer index 2", "2 layers"});
  expect_throw<RangeError>([&] { routes.id(5, 0, 3); }, {"k 3", "top-3"});
  expect_throw<RangeError>([&] { routes.id(5, -1, 0); }, {"-1"});
}

TEST(Routes, RequirePresentNamesStatesAndFirstPositions) {
  Routes routes = sample_routes(kNarrow, {10, 30});
  EXPECT_EQ(&routes.require_present(), &routes);
  routes.states()[0] = RowState::stale;
  routes.states()[3] = RowState::clobbered;
  for (std::size_t i = 5; i < 15; ++i) routes.states()[i] = RowState::missing;
  routes.states()[19] = RowState::unverified;
  expect_throw<RowsNotPresent>(
      [&] { routes.require_present(); },
      {"[10, 30)", "10 missing (positions 15, 16, 17, 18, 19, 20, 21, 22, ...)",
       "1 stale (positions 10)", "1 clobbered (positions 13)", "1 unverified (positions 29)"});
}

TEST(Routes, SplitKeepsEveryRowWithItsPosition) {
  Routes routes = sample_routes(kWide, {5, 9});
  routes.states()[1] = RowState::stale;
  for (std::int64_t at = 5; at <= 9; ++at) {
    const auto [prompt, output] = routes.split(at);
    EXPECT_EQ(prompt.range(), (TokenRange{5, at}));
    EXPECT_EQ(output.range(), (TokenRange{at, 9}));
    for (std::int64_t position = 5; position < 9; ++position) {
      const Routes& part = position < at ? prompt : output;
      EXPECT_EQ(part.state(position), routes.state(position));
      EXPECT_TRUE(std::ranges::equal(part.row(position), routes.row(position)));
    }
  }
  expect_throw<RangeError>([&] { routes.split(4); }, {"4", "[5, 9)"});
  expect_throw<RangeError>([&] { routes.split(10); }, {"10", "[5, 9)"});
}

TEST(Routes, AppendJoinsPartsThatMeet) {  // H28
  const Routes whole = sample_routes(kNarrow, {0, 9});
  auto [joined, rest] = whole.split(4);
  joined.append(rest);
  EXPECT_EQ(joined.range(), whole.range());
  EXPECT_TRUE(std::ranges::equal(joined.bytes(), whole.bytes()));
  EXPECT_TRUE(joined.all_present());
}

TEST(Routes, OfSomeLayersKeepIdsWeightsAndStates) {  // H31
  for (const WeightType type : {WeightType::none, WeightType::float32, WeightType::bfloat16}) {
    const ModelShape shape = ModelShape({1, 2, 5, 7}, 3, 300, 9).with_weights(type);
    Routes whole = sample_routes(shape, {4, 8});
    for (std::size_t i = 0; i < 4; ++i) {
      for (std::size_t at = shape.weights_offset(); at < shape.row_bytes(); ++at) {
        whole.bytes()[i * shape.row_bytes() + at] = static_cast<std::byte>(i * 16 + at);
      }
    }
    whole.states()[2] = RowState::stale;
    const Routes some = whole.with_layers({2, 7});
    EXPECT_EQ(some.shape(), shape.with_layers({2, 7}));
    EXPECT_EQ(some.range(), whole.range());
    EXPECT_TRUE(std::ranges::equal(some.states(), whole.states()));
    for (const std::int64_t position : {4, 5, 7}) {
      for (int k = 0; k < 3; ++k) {
        EXPECT_EQ(some.id(position, 0, k), whole.id(position, 1, k));
        EXPECT_EQ(some.id(position, 1, k), whole.id(position, 3, k));
        if (type == WeightType::none) continue;
        EXPECT_EQ(some.weight(position, 0, k), whole.weight(position, 1, k));
        EXPECT_EQ(some.weight(position, 1, k), whole.weight(position, 3, k));
      }
    }
    EXPECT_EQ(some.row(6)[0], std::byte{0xFF});
    expect_throw<ArgumentError>([&] { whole.with_layers({2, 3}); }, {"3", "1, 2, 5, 7"});
    Routes other = whole.with_layers({1, 2});
    expect_throw<ArgumentError>([&] { other.append(some); }, {"MoE layers 2, 7 and 1, 2"});
  }
}

TEST(Routes, AppendRefusesGapsOverlapsAndOtherShapes) {  // H18, H28
  Routes routes = sample_routes(kNarrow, {0, 4});
  expect_throw<ArgumentError>(
      [&] {
        routes.append(Routes(kNarrow, {5, 6}));
      },
      {"[5, 6)", "[0, 4)", "gap"});
  expect_throw<ArgumentError>(
      [&] {
        routes.append(Routes(kNarrow, {3, 6}));
      },
      {"[3, 6)", "[0, 4)", "overlap"});
  expect_throw<ArgumentError>(
      [&] {
        routes.append(Routes(kWide, {4, 6}));
      },
      {"512 experts", "256 experts"});
  // The same numbers of layers: what differs is named all the same.
  std::vector<int> others = kNarrow.moe_layers();
  for (int& layer : others) layer += 1;
  const ModelShape shifted(others, kNarrow.top_k(), kNarrow.num_experts());
  expect_throw<ArgumentError>(
      [&] {
        routes.append(Routes(shifted, {4, 6}));
      },
      {"they differ in MoE layers", "num_hidden_layers"});
  EXPECT_EQ(routes.range(), (TokenRange{0, 4}));
  EXPECT_TRUE(routes.all_present());
}

}  // namespace
}  // namespace moetap
