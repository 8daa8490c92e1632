// Weights beside the ids, in the kernels that take them, over plain memory.
#include "gpu/capture/weight_kernels.h"

#include <moetap/device_fault.h>
#include <moetap/types.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "test/gpu/run_kernel.h"

namespace moetap {
namespace {

TEST(Bfloat16, RoundsToTheNearestAndToTheEvenOneOfTwo) {
  const std::pair<std::uint32_t, int> cases[] =
      {
          {0x3F80'0000, 0x3F80}, {0x3F80'7FFF, 0x3F80},
          {0x3F80'8000, 0x3F80}, {0x3F80'8001, 0x3F81},
          {0x3F81'8000, 0x3F82}, {0xBF81'8000, 0xBF82},
          {0x0000'0001, 0x0000}, {0x8000'0000, 0x8000},
          {0x7F7F'FFFF, 0x7F80},  // the greatest float is nearer to infinity
          {0x7F80'0000, 0x7F80}, {0xFF80'0000, 0xFF80},
          {0x7F80'0001, 0x7FC0},  // a NaN whose payload is all in the lower half
          {0xFF80'FFFF, 0xFFC0}, {0x7FFF'FFFF, 0x7FFF},
          {0x7FC1'8000, 0x7FC1},
      };
  for (const auto& [float32, bfloat16] : cases) {
    EXPECT_EQ(kernels::to_bfloat16(float32), bfloat16) << std::hex << float32;
  }
}

TEST(Bfloat16, ComesBackFromFloat32AsItWas) {
  for (std::uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    ASSERT_EQ(kernels::to_bfloat16(bits << 16), bits);
  }
}

constexpr std::uint64_t kStep = 7;

// One layer's topk_ids with weights of type From, and a cache of weights of type To.
template <class From, class To>
struct Layer {
  Layer(std::int64_t rows, int top_k, std::int64_t stride)
      : ids(rows * top_k, 5),
        bits(rows * stride),
        missing_step(rows),
        routes(rows * top_k),
        weights(rows * top_k, kUntouched),
        kernel{.ids = {.topk_ids = ids.data(),
                       .rows = rows,
                       .row_stride = top_k,
                       .sink = test::sink_over(step, captured, missing_step, routes, top_k, 8)},
               .weights = {bits.data(), stride, type_of<From>(), false}} {
    kernel.ids.sink.weight_type = type_of<To>();
    kernel.ids.sink.distinct = Distinct::none;
    kernel.ids.sink.weights = weights.data();
    step.step = kStep;
    step.num_tokens = rows;
    std::mt19937 random(1);
    for (From& any : bits) any = static_cast<From>(random());
  }
  template <class T>
  static constexpr WeightType type_of() {
    return sizeof(T) == 4 ? WeightType::float32 : WeightType::bfloat16;
  }

  void run(int lanes) { test::run_kernel(kernel, kernel.ids.rows / kernel.kTokens + 1, lanes); }

  void expect_captured(std::int64_t first, std::int64_t count) {
    const int top_k = kernel.ids.sink.top_k;
    for (std::int64_t row = 0; row < kernel.ids.rows; ++row) {
      for (int k = 0; k < top_k; ++k) {
        To expected = kUntouched;
        if (row < count) {
          const From from = bits[(first + row) * kernel.weights.row_stride + k];
          expected = sizeof(To) < sizeof(From) ? kernels::to_bfloat16(from) : static_cast<To>(from);
        }
        ASSERT_EQ(weights[row * top_k + k], expected) << "row " << row << " k " << k;
      }
    }
  }

  static constexpr To kUntouched = 0xABCD;
  std::vector<std::int32_t> ids;
  std::vector<From> bits;
  DeviceStep step{};
  std::uint64_t captured = 0;
  std::vector<std::uint64_t> missing_step;
  std::vector<std::uint16_t> routes;
  std::vector<To> weights;
  WeightedCaptureKernel<std::int32_t> kernel;
};

template <class Types>
class WeighedCaptureOf : public testing::Test {};
using Pairs =
    testing::Types<std::pair<std::uint32_t, std::uint32_t>, std::pair<std::uint16_t, std::uint16_t>,
                   std::pair<std::uint32_t, std::uint16_t>>;
TYPED_TEST_SUITE(WeighedCaptureOf, Pairs);

TYPED_TEST(WeighedCaptureOf, TakesTheWeightsOfTheRowsThatItTakes) {  // H2, H5, H13, H27
  for (const int lanes : test::kLaneCounts) {
    for (const int top_k : {1, 6, 8, 22}) {
      for (const int more : {0, 3}) {
        SCOPED_TRACE(testing::Message() << lanes << " lanes, top " << top_k << " + " << more);
        Layer<typename TypeParam::first_type, typename TypeParam::second_type> layer(150, top_k,
                                                                                     top_k + more);
        layer.step.num_tokens = 70;
        layer.step.dp_row = 41;
        layer.kernel.ids.sink.first_row = -1;
        layer.run(lanes);
        layer.expect_captured(41, 70);
        EXPECT_EQ(layer.step.fault, 0U);
        EXPECT_EQ(layer.captured, kStep);
      }
    }
  }
}

TEST(WeighedCapture, WhatWasNotGatheredFailsTheStep) {
  for (const int lanes : test::kLaneCounts) {
    for (const bool gathered : {true, false}) {
      Layer<std::uint32_t, std::uint32_t> layer(150, 8, 16);
      layer.bits[131 * 16 + 7] = static_cast<std::uint32_t>(kNotGathered);
      layer.bits[140 * 16 + 9] = static_cast<std::uint32_t>(kNotGathered);  // no weight
      layer.kernel.weights.gathered = gathered;
      layer.run(lanes);
      layer.expect_captured(0, 150);
      EXPECT_EQ(layer.step.fault,
                static_cast<std::uint32_t>(gathered ? DeviceFault::expert_id : DeviceFault::none));
      if (!gathered) continue;
      EXPECT_EQ(layer.step.fault_layer, 3);
      EXPECT_EQ(layer.step.fault_token, 131);
      EXPECT_EQ(layer.step.fault_value, kNotGathered);
    }
  }
}

template <class Types>
class WeighedSnapshotOf : public testing::Test {};
using Layouts =
    testing::Types<std::pair<std::uint8_t, std::uint32_t>, std::pair<std::uint8_t, std::uint16_t>,
                   std::pair<std::uint16_t, std::uint32_t>,
                   std::pair<std::uint16_t, std::uint16_t>>;
TYPED_TEST_SUITE(WeighedSnapshotOf, Layouts);

TYPED_TEST(WeighedSnapshotOf, PutsEachRowsWeightsBehindItsIds) {
  using Id = typename TypeParam::first_type;
  using Bits = typename TypeParam::second_type;
  constexpr std::int64_t kMax = 60;
  for (const int lanes : test::kLaneCounts) {
    for (const int top_k : {1, 3, 8, 22}) {
      for (const bool some : {false, true}) {
        SCOPED_TRACE(testing::Message()
                     << lanes << " lanes, top " << top_k << (some ? ", some" : ""));
        const ModelShape shape =
            ModelShape::uniform(3, top_k, sizeof(Id) == 1 ? 200 : 300)
                .with_weights(sizeof(Bits) == 4 ? WeightType::float32 : WeightType::bfloat16);
        std::mt19937 random(1);
        std::vector<std::uint16_t> routes(3 * kMax * top_k);
        for (auto& id : routes) id = static_cast<std::uint16_t>(random() % 200);
        std::vector<Bits> weights(routes.size());
        for (auto& any : weights) any = static_cast<Bits>(random());
        std::vector<std::uint32_t> tokens;
        for (std::uint32_t t = 0; t < kMax; t += some ? 1 + t % 3 : 1) tokens.push_back(t);
        std::vector<Slot> mapping(kMax, 1);
        std::vector<MarkedSlot> slots(kMax);
        std::vector<std::uint64_t> missing(kMax), captured(3);
        std::vector<Step> record_captured(3);
        DeviceStep step{};
        step.step = kStep;
        step.num_tokens = kMax;
        StepReport report{};
        std::vector<std::byte> rows(tokens.size() * shape.row_bytes(), std::byte{0xEE});
        const auto blocks = static_cast<std::uint32_t>((tokens.size() + 15) / 16);
        const WeightedSnapshotKernel<Id> kernel{
            .ids = {.step = &step,
                    .missing_step = missing.data(),
                    .routes = routes.data(),
                    .slot_mapping = mapping.data(),
                    .tokens = some ? tokens.data() : nullptr,
                    .slots = slots.data(),
                    .rows = reinterpret_cast<Id*>(rows.data()),
                    .row_stride = static_cast<std::int64_t>(shape.row_bytes() / sizeof(Id)),
                    .num_rows = static_cast<std::int64_t>(tokens.size()),
                    .max_tokens = kMax,
                    .num_slots = 10,
                    .num_layers = 3,
                    .top_k = top_k,
                    .blocks = blocks,
                    .head = {captured.data(), &report, record_captured.data(), -1}},
            .weights = weights.data(),
            .offset = static_cast<std::uint32_t>(shape.weights_offset()),
            .type = shape.weight_type()};
        test::run_kernel(kernel, blocks, lanes);
        EXPECT_EQ(report.step, Step(kStep));
        for (std::size_t row = 0; row < tokens.size(); ++row) {
          std::vector<std::byte> expected(shape.row_bytes());
          for (int layer = 0; layer < 3; ++layer) {
            for (int k = 0; k < top_k; ++k) {
              const std::size_t at = (layer * kMax + tokens[row]) * top_k + k;
              const int pick = layer * top_k + k;
              const auto i = static_cast<std::size_t>(pick);
              const auto id = static_cast<Id>(routes[at]);
              std::memcpy(&expected[i * sizeof id], &id, sizeof id);
              std::memcpy(&expected[shape.weights_offset() + i * sizeof(Bits)], &weights[at],
                          sizeof(Bits));
            }
          }
          ASSERT_TRUE(std::equal(expected.begin(), expected.end(),
                                 rows.begin() + static_cast<std::ptrdiff_t>(row * expected.size())))
              << "row " << row;
        }
      }
    }
  }
}

}  // namespace
}  // namespace moetap
