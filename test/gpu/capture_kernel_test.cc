#include <moetap/types.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "gpu/capture/kernels.h"
#include "test/gpu/run_kernel.h"

namespace moetap {
namespace {

constexpr std::uint16_t kUntouched = 0xABCD;
constexpr std::uint64_t kStep = 7;

// One layer's topk_ids, and the cache's memory for that layer.
template <class T>
struct Layer {
  Layer(std::int64_t rows, int top_k, std::int64_t stride, int num_experts)
      : ids(rows * stride),
        missing_step(rows),
        routes(rows * top_k, kUntouched),
        kernel{.topk_ids = ids.data(),
               .rows = rows,
               .row_stride = stride,
               .sink = test::sink_over(step, captured, missing_step, routes, top_k, num_experts)} {
    step.step = kStep;
    step.num_tokens = rows;
    std::mt19937 random(1);
    std::uniform_int_distribution<int> any(0, num_experts - 1);
    for (std::int64_t row = 0; row < rows; ++row) {
      const int first = any(random);
      for (int k = 0; k < stride; ++k) id(row, k) = static_cast<T>((first + 7 * k) % num_experts);
    }
  }

  T& id(std::int64_t row, int k) { return ids[row * kernel.row_stride + k]; }

  void run(int lanes = 1) {
    test::run_kernel(kernel, kernel.rows / CaptureKernel<T>::kTokens + 1, lanes);
  }

  // Rows [0, count) of the cache are rows [first, first + count) of topk_ids, the others untouched.
  void expect_captured(std::int64_t first, std::int64_t count) {
    const int top_k = kernel.sink.top_k;
    for (std::int64_t row = 0; row < kernel.rows; ++row) {
      for (int k = 0; k < top_k; ++k) {
        const auto expected =
            row < count ? static_cast<std::uint16_t>(id(first + row, k)) : kUntouched;
        ASSERT_EQ(routes[row * top_k + k], expected) << "row " << row << " k " << k;
      }
    }
  }

  void expect_fault(DeviceFault fault, std::int64_t token, std::int64_t value) {
    EXPECT_EQ(step.fault, static_cast<std::uint32_t>(fault));
    EXPECT_EQ(step.fault_layer, 3);
    EXPECT_EQ(step.fault_token, token);
    EXPECT_EQ(step.fault_value, value);
  }

  std::vector<T> ids;
  DeviceStep step{};
  std::uint64_t captured = 0;
  std::vector<std::uint64_t> missing_step;
  std::vector<std::uint16_t> routes;
  CaptureKernel<T> kernel;
};

template <class T>
class CaptureKernelOf : public ::testing::Test {};
using Types =
    ::testing::Types<std::uint8_t, std::uint16_t, std::int16_t, std::int32_t, std::int64_t>;
TYPED_TEST_SUITE(CaptureKernelOf, Types);

template <class T>
class CaptureKernelOfSigned : public ::testing::Test {};
using SignedTypes = ::testing::Types<std::int16_t, std::int32_t, std::int64_t>;
TYPED_TEST_SUITE(CaptureKernelOfSigned, SignedTypes);

TYPED_TEST(CaptureKernelOf, TakesTheFirstTopKColumnsOfRowsOfAnyStride) {  // H27
  for (const int lanes : test::kLaneCounts) {
    for (const int top_k : {1, 2, 6, 8, 22}) {
      for (const int more : {0, 1, 5}) {
        SCOPED_TRACE(::testing::Message() << lanes << " lanes, top " << top_k << " + " << more);
        Layer<TypeParam> layer(150, top_k, top_k + more, 100);
        layer.run(lanes);
        layer.expect_captured(0, 150);
        EXPECT_EQ(layer.step.fault, 0u);
        EXPECT_EQ(layer.captured, kStep);
      }
    }
  }
}

TYPED_TEST(CaptureKernelOf, NeitherReadsNorWritesRowsPastTheStepsTokens) {  // H2, H13
  for (const int lanes : test::kLaneCounts) {
    Layer<TypeParam> layer(150, 8, 8, 100);
    layer.step.num_tokens = 70;
    for (std::int64_t row = 70; row < 150; ++row) layer.id(row, 0) = 101;  // would be a fault
    layer.run(lanes);
    layer.expect_captured(0, 70);
    EXPECT_EQ(layer.step.fault, 0u);
  }
}

TYPED_TEST(CaptureKernelOf, TakesTheRowsOfThisRank) {  // H5
  for (const std::int64_t fixed : {std::int64_t{40}, std::int64_t{-1}}) {
    Layer<TypeParam> layer(150, 8, 9, 100);
    layer.step.num_tokens = 65;
    layer.step.dp_row = fixed >= 0 ? 0 : 40;
    layer.kernel.sink.first_row = fixed;
    layer.run();
    layer.expect_captured(40, 65);
  }
}

TYPED_TEST(CaptureKernelOf, FindsTooFewRowsOnTheDevice) {  // H5, H13
  for (const int lanes : test::kLaneCounts) {
    Layer<TypeParam> layer(150, 8, 8, 100);
    layer.step.num_tokens = 65;
    layer.step.dp_row = 86;
    layer.kernel.sink.first_row = -1;
    layer.run(lanes);
    layer.expect_captured(0, 0);
    layer.expect_fault(DeviceFault::rows, 151, 150);
  }
}

TYPED_TEST(CaptureKernelOf, ReportsAnIdOfNoExpertWithLayerTokenAndValue) {  // H20
  for (const int lanes : test::kLaneCounts) {
    for (const int more : {0, 2}) {
      Layer<TypeParam> layer(150, 8, 8 + more, 100);
      layer.id(131, 7) = 100;
      layer.run(lanes);
      layer.expect_fault(DeviceFault::expert_id, 131, 100);
    }
  }
}

// In any two columns, of a row anywhere, with the other one's fault elsewhere or none.
TYPED_TEST(CaptureKernelOf, ReportsAnExpertThatComesTwiceWithLayerTokenAndId) {  // H32
  for (const int lanes : test::kLaneCounts) {
    for (const int top_k : {2, 3, 8, 22}) {
      for (const int more : {0, 2}) {
        for (const int k : {0, top_k - 2}) {
          SCOPED_TRACE(::testing::Message() << lanes << " lanes, top " << top_k << ", pick " << k);
          Layer<TypeParam> layer(150, top_k, top_k + more, 100);
          layer.id(131, top_k - 1) = layer.id(131, k);
          layer.run(lanes);
          layer.expect_fault(DeviceFault::repeated_id, 131,
                             static_cast<std::int64_t>(layer.id(131, k)));
        }
      }
    }
  }
}

TYPED_TEST(CaptureKernelOf, ComparesOnlyWhatItIsToldToOnAHost) {  // H32
  const auto fault_of_equal = [](int one, int other, Distinct distinct) {
    Layer<TypeParam> layer(70, 8, 8, 100);
    layer.kernel.sink.distinct = distinct;
    layer.id(66, one) = layer.id(66, other);
    layer.run();
    layer.expect_captured(0, 70);
    return layer.step.fault;
  };
  constexpr auto kRepeated = static_cast<std::uint32_t>(DeviceFault::repeated_id);
  EXPECT_EQ(fault_of_equal(0, 1, Distinct::first_two), kRepeated);
  EXPECT_EQ(fault_of_equal(1, 2, Distinct::first_two), 0u);
  EXPECT_EQ(fault_of_equal(1, 2, Distinct::all), kRepeated);
  EXPECT_EQ(fault_of_equal(0, 1, Distinct::none), 0u);
}

TYPED_TEST(CaptureKernelOf, OnePickARowRepeatsNothing) {
  Layer<TypeParam> layer(150, 1, 1, 100);
  for (std::int64_t row = 0; row < 150; ++row) layer.id(row, 0) = 0;
  layer.run();
  EXPECT_EQ(layer.step.fault, 0u);
}

TYPED_TEST(CaptureKernelOfSigned, MissingRoutesMayRepeat) {  // H32, H2
  for (const Distinct distinct : {Distinct::first_two, Distinct::all}) {
    Layer<TypeParam> layer(150, 8, 8, 100);
    layer.kernel.sink.distinct = distinct;
    for (int k = 0; k < 8; ++k) layer.id(80, k) = -1;
    layer.run();
    EXPECT_EQ(layer.step.fault, 0u);
    EXPECT_EQ(layer.missing_step[80], kStep);
  }
}

TYPED_TEST(CaptureKernelOf, IgnoresWhateverIsInTheSharedExpertColumns) {  // H27
  Layer<TypeParam> layer(150, 8, 9, 100);
  for (std::int64_t row = 0; row < 150; ++row) layer.id(row, 8) = 100;
  layer.run();
  EXPECT_EQ(layer.step.fault, 0u);
}

TYPED_TEST(CaptureKernelOf, KeepsTheFirstFault) {
  Layer<TypeParam> layer(150, 8, 8, 100);
  layer.id(20, 1) = 120;
  layer.id(20, 2) = 121;
  layer.id(140, 0) = 122;
  layer.run();
  layer.expect_fault(DeviceFault::expert_id, 20, 120);
}

TYPED_TEST(CaptureKernelOf, FindsALayerThatIsCapturedTwiceInAStep) {
  Layer<TypeParam> layer(10, 8, 8, 100);
  layer.run();
  EXPECT_EQ(layer.step.fault, 0u);
  layer.step.step = kStep + 1;
  layer.run();
  EXPECT_EQ(layer.step.fault, 0u);
  layer.run();
  layer.expect_fault(DeviceFault::layer_twice, 0, 0);
}

TYPED_TEST(CaptureKernelOf, StampsALayerThatHasNoTokens) {
  Layer<TypeParam> layer(10, 8, 8, 100);
  layer.step.num_tokens = 0;
  layer.run();
  EXPECT_EQ(layer.captured, kStep);
  layer.expect_captured(0, 0);
}

TYPED_TEST(CaptureKernelOfSigned, RemembersAMissingRouteBesideTheRow) {  // H2, H21
  for (const int lanes : test::kLaneCounts) {
    Layer<TypeParam> layer(150, 8, 8, 100);
    layer.id(5, 0) = static_cast<TypeParam>(-1);
    layer.id(149, 7) = static_cast<TypeParam>(-1);
    layer.run(lanes);
    for (std::int64_t row = 0; row < 150; ++row) {
      EXPECT_EQ(layer.missing_step[row], row == 5 || row == 149 ? kStep : 0) << row;
    }
    EXPECT_EQ(layer.step.fault, 0u);
  }
}

TYPED_TEST(CaptureKernelOfSigned, TakesNoOtherNegativeIdForAMissingRoute) {
  for (const std::int64_t value :
       {std::int64_t{-2}, std::int64_t{std::numeric_limits<TypeParam>::min()}}) {
    Layer<TypeParam> layer(20, 8, 8, 100);
    layer.id(5, 0) = static_cast<TypeParam>(value);
    layer.run();
    layer.expect_fault(DeviceFault::expert_id, 5, value);
  }
}

TEST(CaptureKernel, SeesBothHalvesOfAnInt64) {
  for (const std::int64_t value : {(std::int64_t{1} << 32) + 3, std::int64_t{1} << 16,
                                   std::int64_t{0xFFFF}, std::int64_t{0xFFFFFFFF}}) {
    Layer<std::int64_t> layer(20, 8, 8, 100);
    layer.id(11, 4) = value;
    layer.run();
    layer.expect_fault(DeviceFault::expert_id, 11, value);
  }
}

TEST(CaptureKernel, TakesTheHighestIdOfEveryTypeForAnExpert) {  // H21
  Layer<std::uint8_t> bytes(3, 8, 8, 256);
  for (int k = 0; k < 8; ++k) bytes.id(1, k) = static_cast<std::uint8_t>(255 - k);
  bytes.run();
  EXPECT_EQ(bytes.step.fault, 0u);
  bytes.expect_captured(0, 3);

  Layer<std::uint16_t> words(3, 8, 8, 65536);
  words.id(1, 1) = 65535;
  words.id(1, 2) = 65534;
  words.run();
  EXPECT_EQ(words.step.fault, 0u);
  EXPECT_EQ(words.missing_step[1], 0u);
  words.expect_captured(0, 3);

  Layer<std::int32_t> ints(3, 8, 8, 65536);
  ints.id(1, 1) = 65535;
  ints.run();
  EXPECT_EQ(ints.step.fault, 0u);
  ints.expect_captured(0, 3);
}

}  // namespace
}  // namespace moetap
