#include "examples/simulator/router.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <vector>

namespace demo {
namespace {

class RouterShapes : public testing::TestWithParam<std::tuple<int, int>> {
 protected:
  moetap::ModelShape shape{
      moetap::ModelShape::uniform(12, std::get<0>(GetParam()), std::get<1>(GetParam()))};
};

TEST_P(RouterShapes, PicksDistinctExpertsInRange) {
  const Router router(shape);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(shape.top_k()));
  for (int i = 0; i < 20'000; ++i) {
    router(static_cast<Token>(mix(static_cast<std::uint64_t>(i)) % kVocabulary), i, i % 12,
           ids.data());
    ASSERT_EQ(std::set(ids.begin(), ids.end()).size(), ids.size());
    ASSERT_GE(*std::min_element(ids.begin(), ids.end()), 0);
    ASSERT_LT(*std::max_element(ids.begin(), ids.end()), shape.num_experts());
  }
}

// top-k of experts: the published shapes, and the edges (all experts, one expert, the most).
INSTANTIATE_TEST_SUITE_P(Models, RouterShapes,
                         testing::Values(std::tuple(8, 128), std::tuple(8, 256), std::tuple(8, 384),
                                         std::tuple(2, 8), std::tuple(4, 128), std::tuple(8, 40),
                                         std::tuple(22, 512), std::tuple(1, 128), std::tuple(1, 1),
                                         std::tuple(6, 6), std::tuple(3, 7), std::tuple(9, 65536)));

TEST(Router, IsSkewedAndHasOtherFavouritesAtEachLayer) {
  const auto shape = moetap::ModelShape::uniform(2, 8, 128);
  const Router router(shape);
  std::vector<std::int32_t> ids(8);
  std::vector<std::vector<int>> load(2, std::vector<int>(128));
  constexpr int tokens = 50'000;
  for (int i = 0; i < tokens; ++i) {
    for (int layer = 0; layer < 2; ++layer) {
      router(static_cast<Token>(mix(static_cast<std::uint64_t>(i)) % kVocabulary), i, layer,
             ids.data());
      for (const std::int32_t id : ids) ++load[static_cast<std::size_t>(layer)][id];
    }
  }
  const double average = tokens * 8.0 / 128;
  for (const auto& layer : load) {
    EXPECT_GT(*std::max_element(layer.begin(), layer.end()), 2 * average);
    EXPECT_GT(*std::min_element(layer.begin(), layer.end()), 0.2 * average);
  }
  EXPECT_NE(std::max_element(load[0].begin(), load[0].end()) - load[0].begin(),
            std::max_element(load[1].begin(), load[1].end()) - load[1].begin());
}

// Otherwise the verifier could not tell a row of another token, position or layer.
TEST(Router, DependsOnTokenPositionAndLayer) {
  const auto shape = moetap::ModelShape::known("qwen3-30b-a3b");
  const Router router(shape);
  const auto row = [&](Token token, std::int64_t position, int layer_shift) {
    std::vector<std::uint8_t> ids(shape.row_ids());
    for (int layer = 0; layer < shape.num_layers(); ++layer) {
      router(token, position, layer + layer_shift, ids.data() + layer * shape.top_k());
    }
    return ids;
  };
  std::set<std::vector<std::uint8_t>> rows;
  std::size_t count = 0;
  for (Token token = 0; token < 30; ++token) {
    for (std::int64_t position = 0; position < 30; ++position) {
      for (int shift = 0; shift < 3; ++shift, ++count) rows.insert(row(token, position, shift));
    }
  }
  EXPECT_EQ(rows.size(), count);
  EXPECT_EQ(row(5, 6, 0), row(5, 6, 0));
}

}  // namespace
}  // namespace demo
