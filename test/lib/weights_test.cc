// Rows that hold the router's weights beside the ids.
#include <moetap/block_store.h>
#include <moetap/error.h>
#include <moetap/routes.h>
#include <moetap/routes_json.h>
#include <moetap/stages.h>
#include <moetap/topology.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "test/lib/sample_routes.h"
#include "test/lib/throws.h"

namespace moetap {
namespace {

using test::expect_throw;

const ModelShape kPlain({1, 4, 7}, 3, 200);  // 9 bytes of ids
const ModelShape kWide({1, 4, 7}, 3, 40'000);

// Every bit pattern is allowed, NaN and infinity too.
std::uint32_t sample_bits(std::int64_t position, std::size_t i) {
  if (i == 0) return 0x7F80'0001;  // a signalling NaN
  if (i == 1) return 0xFF80'0000;  // minus infinity
  return 0x9E37'79B9U * static_cast<std::uint32_t>(position * 100 + static_cast<std::int64_t>(i));
}

// All present, with weights.
Routes weighed_routes(const ModelShape& shape, TokenRange range) {
  const Routes ids = test::sample_routes(shape.with_weights(WeightType::none), range);
  Routes routes(shape, range);
  std::ranges::copy(ids.states(), routes.states().begin());
  for (std::int64_t position = range.start; position < range.end; ++position) {
    auto* row = const_cast<std::byte*>(routes.row(position).data());
    std::ranges::copy(ids.row(position), row);
    std::memset(row + shape.ids_bytes(), 0, shape.weights_offset() - shape.ids_bytes());
    for (std::size_t i = 0; i < shape.row_ids(); ++i) {
      const std::size_t width = weight_bytes(shape.weight_type());
      const std::uint32_t bits = sample_bits(position, i) >> (32 - 8 * width);
      std::memcpy(row + shape.weights_offset() + i * width, &bits, width);
    }
  }
  return routes;
}

void expect_equal(const Routes& found, const Routes& expected) {
  EXPECT_EQ(found.range(), expected.range());
  EXPECT_TRUE(std::ranges::equal(found.states(), expected.states()));
  EXPECT_TRUE(std::ranges::equal(found.bytes(), expected.bytes()));
}

class Weights : public testing::TestWithParam<std::pair<ModelShape, WeightType>> {
 protected:
  const ModelShape shape = GetParam().first.with_weights(GetParam().second);
  const std::size_t width = weight_bytes(GetParam().second);
};
INSTANTIATE_TEST_SUITE_P(All, Weights,
                         testing::Values(std::pair(kPlain, WeightType::float32),
                                         std::pair(kPlain, WeightType::bfloat16),
                                         std::pair(kWide, WeightType::float32),
                                         std::pair(kWide, WeightType::bfloat16)),
                         [](const auto& info) {
                           return std::to_string(info.param.first.num_experts()) + "Experts_" +
                                  std::string(weight_type_name(info.param.second));
                         });

TEST(WeightShape, WithoutWeightsARowIsAsLongAsItsIds) {
  EXPECT_EQ(kPlain.weight_type(), WeightType::none);
  EXPECT_EQ(kPlain.row_bytes(), 9U);
  EXPECT_EQ(kPlain.weights_offset(), 9U);
  EXPECT_EQ(kWide.row_bytes(), 18U);
  EXPECT_EQ(kPlain.with_weights(WeightType::float32).with_weights(WeightType::none), kPlain);
}

TEST(WeightShape, WeightsFollowAlignedForAnArrayOfRows) {
  const auto expect = [](const ModelShape& shape, WeightType type, std::size_t at,
                         std::size_t bytes) {
    EXPECT_EQ(shape.with_weights(type).weights_offset(), at);
    EXPECT_EQ(shape.with_weights(type).row_bytes(), bytes);
  };
  expect(kPlain, WeightType::float32, 12, 48);
  expect(kPlain, WeightType::bfloat16, 10, 28);
  expect(kWide, WeightType::float32, 20, 56);
  expect(kWide, WeightType::bfloat16, 18, 36);
}

TEST(WeightShape, IsAnotherShapeAndSaysSo) {
  const ModelShape weighed = kPlain.with_weights(WeightType::float32);
  EXPECT_NE(weighed, kPlain);
  EXPECT_NE(weighed, kPlain.with_weights(WeightType::bfloat16));
  EXPECT_EQ(weighed.to_string(), "3 layers x top-3 of 200 experts with float32 weights");
  expect_throw<ArgumentError>([] { (void)kPlain.with_weights(WeightType{3}); },
                              {"weight type 3", "bfloat16"});
}

TEST(WeightShape, AStageHasTheWeightsOfItsModel) {
  const Topology topology{.pp_size = 2, .stage_layers = {{1, 7}, {4}}};
  const ModelShape stage = topology.stage_shape(kPlain.with_weights(WeightType::bfloat16), 0);
  EXPECT_EQ(stage, kPlain.with_layers({1, 7}).with_weights(WeightType::bfloat16));
}

TEST_P(Weights, AreReadByPositionBesideTheIds) {
  const Routes routes = weighed_routes(shape, {5, 9});
  for (std::int64_t position = 5; position < 9; ++position) {
    for (std::size_t i = 0; i < shape.row_ids(); ++i) {
      const std::uint32_t bits = sample_bits(position, i);
      const int layer = static_cast<int>(i / 3);
      const int k = static_cast<int>(i % 3);
      EXPECT_EQ(routes.id(position, layer, k), test::sample_id(shape, position, layer, k));
      const float weight = routes.weight(position, layer, k);
      if (width == 4) {
        EXPECT_EQ(std::bit_cast<std::uint32_t>(routes.weights<float>(position)[i]), bits);
        if (i > 0) {
          EXPECT_EQ(std::bit_cast<std::uint32_t>(weight), bits);
        }
      } else {
        EXPECT_EQ(routes.weights<BFloat16>(position)[i].bits, bits >> 16);
        if (i > 0) {
          EXPECT_EQ(std::bit_cast<std::uint32_t>(weight), bits & 0xFFFF'0000);
        }
      }
    }
  }
  EXPECT_TRUE(width == 4 ? std::isnan(routes.weight(5, 0, 0)) : std::isinf(routes.weight(5, 0, 1)));
}

TEST_P(Weights, OfAnotherTypeOrOutsideAreAnError) {
  const Routes routes = weighed_routes(shape, {5, 9});
  expect_throw<RangeError>([&] { (void)routes.weight(9, 0, 0); }, {"position 9"});
  expect_throw<RangeError>([&] { (void)routes.weight(5, 3, 0); }, {"layer index 3"});
  if (width == 4) {
    expect_throw<ArgumentError>([&] { (void)routes.weights<BFloat16>(5); },
                                {"bfloat16", "float32"});
  } else {
    expect_throw<ArgumentError>([&] { (void)routes.weights<float>(5); }, {"bfloat16", "float32"});
  }
  const Routes without(GetParam().first, {5, 9});
  expect_throw<ArgumentError>([&] { (void)without.weight(5, 0, 0); }, {"none"});
  expect_throw<ArgumentError>([&] { to_weights(without); }, {"none", "with_weights"});
  expect_throw<ArgumentError>([&] { weights_to_npy(without); }, {"none"});
}

TEST_P(Weights, GoWithTheirRowsThroughSplitAndAppend) {
  const Routes routes = weighed_routes(shape, {5, 9});
  auto [front, back] = routes.split(6);
  expect_equal(back, weighed_routes(shape, {6, 9}));
  front.append(back);
  expect_equal(front, routes);
  EXPECT_THROW(front.append(Routes(GetParam().first, {9, 10})), ArgumentError);
}

TEST_P(Weights, IdsConvertAsWithoutThem) {
  const Routes plain = test::sample_routes(GetParam().first, {5, 9});
  EXPECT_EQ(to_ids(weighed_routes(shape, {5, 9}), IdType::int32), to_ids(plain, IdType::int32));
}

TEST_P(Weights, LeaveWithoutTheIdsAndComeBack) {
  Routes routes = weighed_routes(shape, {5, 9});
  const std::vector<std::byte> weights = to_weights(routes);
  ASSERT_EQ(weights.size(), 4 * shape.row_ids() * width);
  for (std::int64_t position = 5; position < 9; ++position) {
    const auto at = static_cast<std::size_t>(position - 5) * shape.row_ids() * width;
    EXPECT_TRUE(std::ranges::equal(std::span(weights).subspan(at, shape.row_ids() * width),
                                   routes.row(position).last(shape.row_ids() * width)));
  }
  const std::string ids = to_npy(routes, IdType::uint16);
  expect_equal(from_npy(ids, weights_to_npy(routes), shape, 5), routes);
  expect_equal(from_json(to_json(routes, IdType::int32), shape), routes);
}

TEST_P(Weights, OfRowsThatAreNotPresentAreNoNumbers) {
  Routes routes = weighed_routes(shape, {0, 3});
  routes.states()[1] = RowState::stale;  // its bytes look like a row
  const std::vector<std::byte> weights = to_weights(routes);
  const std::size_t row = shape.row_ids() * width;
  EXPECT_TRUE(std::ranges::all_of(std::span(weights).subspan(row, row),
                                  [](std::byte b) { return b == std::byte{0xFF}; }));
  EXPECT_FALSE(
      std::ranges::equal(std::span(weights).first(row), std::span(weights).subspan(row, row)));
  const Routes back = from_json(to_json(routes, IdType::int32), shape);
  EXPECT_EQ(back.state(1), RowState::stale);
  EXPECT_EQ(back.row(1)[shape.weights_offset()], std::byte{0xFF});
}

TEST_P(Weights, FilesThatContradictTheShapeAreRefused) {
  const ModelShape& plain = GetParam().first;
  const Routes routes = weighed_routes(shape, {5, 9});
  const std::string ids = to_npy(routes, IdType::int32);
  const std::string weights = weights_to_npy(routes);
  const WeightType other = width == 4 ? WeightType::bfloat16 : WeightType::float32;
  const std::string others = weights_to_npy(weighed_routes(plain.with_weights(other), {5, 9}));

  expect_throw<ArgumentError>([&] { from_npy(ids, shape, 5); }, {"weights"});
  expect_throw<ArgumentError>([&] { from_npy(ids, weights, plain, 5); },
                              {"none", "with_weights()"});
  expect_throw<ArgumentError>([&] { from_npy(ids, others, shape, 5); },
                              {width == 4 ? "<f4" : "<u2", "weights second"});
  expect_throw<ArgumentError>(
      [&] {
        from_npy(ids, weights_to_npy(weighed_routes(shape, {5, 8})), shape, 5);
      },
      {"weights of 3 tokens beside ids of 4", "same routes"});
  if (width == 4) {
    expect_throw<ArgumentError>([&] { from_npy(weights, plain, 5); }, {"<f4", "for ids"});
  }
  const std::string json = to_json(routes, IdType::int32);
  expect_throw<ArgumentError>([&] { from_json(json, plain); },
                              {"weights", plain.to_string(), "with_weights()"});
  expect_throw<ArgumentError>([&] { from_json(json, plain.with_weights(other)); },
                              {"weights", "of that type"});
  expect_throw<ArgumentError>(
      [&] {
        from_json(to_json(test::sample_routes(plain, {5, 9}), IdType::int32), shape);
      },
      {"\"weights\""});
}

TEST_P(Weights, NoBitsOfThemAreTakenForIds) {  // H20
  const BlockStoreOptions options{
      .shape = shape, .block_size = 4, .max_bytes = 1 << 20, .model_version = "v1"};
  const auto store = make_memory_block_store(options);
  const Routes routes = weighed_routes(shape, {0, 4});
  EXPECT_EQ(store->put(BlockKey("a"), routes.bytes()), BlockStore::Put::stored);
  std::vector<std::byte> rows(options.block_bytes());
  ASSERT_TRUE(store->get(BlockKey("a"), rows));
  EXPECT_TRUE(std::ranges::equal(rows, routes.bytes()));

  // The last id of the last row, which lies before its weights.
  const std::size_t id = rows.size() - shape.row_bytes() + shape.ids_bytes() - 1;
  rows[id] = std::byte{0xFF};
  EXPECT_THROW(store->put(BlockKey("b"), rows), RangeError);
}

TEST_P(Weights, ABlockWithBytesBetweenIdsAndWeightsIsRefused) {
  const BlockStoreOptions options{
      .shape = shape, .block_size = 4, .max_bytes = 1 << 20, .model_version = "v1"};
  const auto store = make_memory_block_store(options);
  const Routes routes = weighed_routes(shape, {0, 4});
  for (std::size_t at = shape.ids_bytes(); at < shape.weights_offset(); ++at) {
    std::vector<std::byte> rows(routes.bytes().begin(), routes.bytes().end());
    rows[2 * shape.row_bytes() + at] = std::byte{1};
    expect_throw<ArgumentError>(
        [&] { store->put(BlockKey("a"), rows); },
        {"row 2", "weights_offset(), " + std::to_string(shape.weights_offset())});
    EXPECT_EQ(store->stats().blocks, 0U);
  }
}

// A stage's rows in plain memory, all of one step.
class StageMemory final : public SlotReadTransport {
 public:
  StageMemory(ModelShape shape, std::vector<std::byte> rows)
      : shape_(std::move(shape)), rows_(std::move(rows)) {}

  const ModelShape& shape() const override { return shape_; }
  std::int64_t num_slots() const override { return 4; }
  Step poll() override { return 1; }
  void wait_for(Step, Milliseconds) override {}
  void read(std::span<const Slot> slots, std::span<const StepWindow>, std::span<std::byte> rows,
            std::span<RowState> states) override {
    const std::size_t bytes = shape_.row_bytes();
    for (std::size_t i = 0; i < slots.size(); ++i) {
      std::memcpy(&rows[i * bytes], &rows_[static_cast<std::size_t>(slots[i].value()) * bytes],
                  bytes);
    }
    std::ranges::fill(states, RowState::present);
  }
  void put(Step, std::span<const Slot> slots, std::span<const std::byte> rows,
           std::span<const RowState>) override {
    const std::size_t bytes = shape_.row_bytes();
    for (std::size_t i = 0; i < slots.size(); ++i) {
      std::memcpy(&rows_[static_cast<std::size_t>(slots[i].value()) * bytes], &rows[i * bytes],
                  bytes);
    }
  }

 private:
  ModelShape shape_;
  std::vector<std::byte> rows_;
};

// What `layers` of each row are, as rows of a stage with them.
std::vector<std::byte> stage_rows(const Routes& whole, const ModelShape& stage) {
  std::vector<std::byte> rows;
  for (std::int64_t p = whole.range().start; p < whole.range().end; ++p) {
    const auto add = [&](std::size_t at, std::size_t bytes) {
      for (const int layer : stage.moe_layers()) {
        const auto index = static_cast<std::size_t>(whole.shape().layer_index(layer));
        const auto part = whole.row(p).subspan(at + index * bytes, bytes);
        rows.insert(rows.end(), part.begin(), part.end());
      }
    };
    add(0, 3 * id_bytes(stage.id_type()));
    rows.resize(rows.size() + stage.weights_offset() - stage.ids_bytes());
    add(whole.shape().weights_offset(), 3 * weight_bytes(stage.weight_type()));
  }
  return rows;
}

TEST_P(Weights, OfStagesAreJoinedAndSplit) {
  const Routes routes = weighed_routes(shape, {0, 4});
  std::vector<std::unique_ptr<SlotReadTransport>> stages;
  for (const std::vector<int>& layers : {std::vector<int>{1, 7}, std::vector<int>{4}}) {
    const ModelShape stage =
        ModelShape(layers, 3, shape.num_experts()).with_weights(shape.weight_type());
    stages.push_back(std::make_unique<StageMemory>(stage, stage_rows(routes, stage)));
  }
  const auto joined = join_stages(shape, std::move(stages));

  const std::vector<Slot> slots{2, 0, 3};
  const StepWindow window{1, 1};
  std::vector<std::byte> rows(3 * shape.row_bytes(), std::byte{0xAB});
  std::vector<RowState> states(3);
  joined->read(slots, {&window, 1}, rows, states);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    EXPECT_TRUE(
        std::ranges::equal(std::span(rows).subspan(i * shape.row_bytes(), shape.row_bytes()),
                           routes.row(slots[i].value())))
        << i;
  }
  const Routes others = weighed_routes(shape, {100, 103});
  joined->put(2, slots, others.bytes(), {});
  joined->read(slots, {&window, 1}, rows, states);
  EXPECT_TRUE(std::ranges::equal(rows, others.bytes()));
}

TEST_P(Weights, StagesThatHaveOtherOnesDoNotJoin) {
  std::vector<std::unique_ptr<SlotReadTransport>> stages;
  stages.push_back(std::make_unique<StageMemory>(GetParam().first, std::vector<std::byte>()));
  expect_throw<ArgumentError>([&] { (void)join_stages(shape, std::move(stages)); },
                              {shape.to_string(), GetParam().first.to_string()});
}

}  // namespace
}  // namespace moetap
