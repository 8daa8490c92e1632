#include "gpu/capture/snapshot_kernel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "test/gpu/run_kernel.h"

namespace moetap {
namespace {

constexpr std::uint64_t kStep = 7;
constexpr std::int64_t kSlots = 1000;
constexpr auto kNotWritten = MarkedSlot::missing(76);

// A cache filled with random ids, and a record's parts to snapshot it into.
template <class Id>
struct Cache {
  Cache(int num_layers, int top_k, std::int64_t num_tokens, std::int64_t max_tokens)
      : missing_step(max_tokens),
        routes(num_layers * max_tokens * top_k),
        slot_mapping(num_tokens),
        slots(max_tokens, kNotWritten),
        rows(max_tokens * num_layers * top_k, kUntouched),
        captured(num_layers),
        record_captured(num_layers, 77),
        kernel{.step = &step,
               .missing_step = missing_step.data(),
               .routes = routes.data(),
               .slot_mapping = slot_mapping.data(),
               .tokens = nullptr,
               .slots = slots.data(),
               .rows = rows.data(),
               .row_stride = std::int64_t{num_layers} * top_k,
               .num_rows = num_tokens,
               .max_tokens = max_tokens,
               .num_slots = kSlots,
               .num_layers = num_layers,
               .top_k = top_k,
               .blocks = 0,
               .head = {.captured = captured.data(),
                        .report = &report,
                        .record_captured = record_captured.data(),
                        .wanted = -1}} {
    step.step = kStep;
    step.num_tokens = num_tokens;
    std::mt19937 random(1);
    for (auto& id : routes) id = static_cast<std::uint16_t>(random() % 200);
    for (auto& slot : slot_mapping) slot = Slot(random() % kSlots);
  }

  void run(int lanes = 1) {
    kernel.blocks = static_cast<std::uint32_t>(
        std::max<std::int64_t>(1, (kernel.num_rows + kernel.kTokens - 1) / kernel.kTokens));
    test::run_kernel(kernel, kernel.blocks, lanes);
  }

  static constexpr Id kUntouched = 0xEE;
  DeviceStep step{};
  std::vector<std::uint64_t> missing_step;
  std::vector<std::uint16_t> routes;
  std::vector<Slot> slot_mapping;
  std::vector<MarkedSlot> slots;
  std::vector<Id> rows;
  std::vector<std::uint64_t> captured;
  std::vector<Step> record_captured;
  StepReport report{};
  SnapshotKernel<Id> kernel;
};

template <class Id>
class SnapshotKernelOf : public ::testing::Test {};
using Types = ::testing::Types<std::uint8_t, std::uint16_t>;
TYPED_TEST_SUITE(SnapshotKernelOf, Types);

TYPED_TEST(SnapshotKernelOf, TransposesToRowsByToken) {
  for (const int lanes : test::kLaneCounts) {
    for (const int top_k : {1, 4, 8, 10, 16, 22}) {
      for (const std::int64_t n : {1, 15, 16, 17, 64, 99}) {
        SCOPED_TRACE(::testing::Message() << lanes << " lanes, top " << top_k << ", " << n);
        Cache<TypeParam> cache(5, top_k, n, 100);
        cache.run(lanes);
        std::size_t i = 0;
        for (std::int64_t token = 0; token < 100; ++token) {
          for (int layer = 0; layer < 5; ++layer) {
            for (int k = 0; k < top_k; ++k, ++i) {
              const auto id =
                  static_cast<TypeParam>(cache.routes[(layer * 100 + token) * top_k + k]);
              ASSERT_EQ(cache.rows[i], token < n ? id : cache.kUntouched)
                  << "token " << token << " layer " << layer << " k " << k;
            }
          }
        }
      }
    }
  }
}

TYPED_TEST(SnapshotKernelOf, TakesOnlyTheTokensThatAreWanted) {
  std::mt19937 random(2);
  for (const int lanes : test::kLaneCounts) {
    for (const int top_k : {1, 8, 22}) {
      for (const unsigned run : {1, 3, 16, 40}) {  // tokens in a row, about
        SCOPED_TRACE(::testing::Message() << lanes << " lanes, top " << top_k << ", runs " << run);
        Cache<TypeParam> cache(5, top_k, 99, 100);
        std::vector<std::uint32_t> tokens;
        for (std::uint32_t next = 0; next < 99;) {
          next += static_cast<std::uint32_t>(random() % (run + 1));
          for (auto left = 1 + random() % run; left > 0 && next < 99; --left) {
            tokens.push_back(next++);
          }
        }
        ASSERT_GT(tokens.size(), 3u);
        tokens.shrink_to_fit();  // so that a sanitizer sees a read past its end
        cache.missing_step[tokens[3]] = kStep;
        cache.kernel.tokens = tokens.data();
        cache.kernel.num_rows = static_cast<std::int64_t>(tokens.size());
        cache.run(lanes);
        std::size_t i = 0;
        for (std::size_t row = 0; row < 100; ++row) {
          const bool taken = row < tokens.size();
          for (int layer = 0; layer < 5; ++layer) {
            for (int k = 0; k < top_k; ++k, ++i) {
              const std::size_t from = taken ? (layer * 100 + tokens[row]) * top_k + k : 0;
              const auto id = static_cast<TypeParam>(cache.routes[from]);
              ASSERT_EQ(cache.rows[i], taken ? id : cache.kUntouched) << "row " << row;
            }
          }
          if (!taken) {
            EXPECT_EQ(cache.slots[row], kNotWritten) << "row " << row;
            continue;
          }
          const Slot slot = cache.slot_mapping[tokens[row]];
          EXPECT_EQ(cache.slots[row], row == 3 ? MarkedSlot::missing(slot) : MarkedSlot(slot))
              << "row " << row;
        }
      }
    }
  }
}

TYPED_TEST(SnapshotKernelOf, LooksAtNoSlotThatIsNotWanted) {
  Cache<TypeParam> cache(2, 8, 50, 100);
  cache.slot_mapping[20] = kSlots;
  cache.slot_mapping[30] = -1;
  const std::vector<std::uint32_t> tokens = {19, 21, 30};
  cache.kernel.tokens = tokens.data();
  cache.kernel.num_rows = 2;
  cache.run();
  EXPECT_EQ(cache.step.fault, 0u);
  cache.kernel.num_rows = 3;
  cache.run();
  EXPECT_EQ(cache.step.fault, static_cast<std::uint32_t>(DeviceFault::slot));
  EXPECT_EQ(cache.step.fault_token, 30);  // of the step, not of the record
}

TYPED_TEST(SnapshotKernelOf, ClonesTheSlotMapping) {
  for (const int lanes : test::kLaneCounts) {
    Cache<TypeParam> cache(2, 8, 50, 100);
    cache.run(lanes);
    for (std::int64_t token = 0; token < 100; ++token) {
      EXPECT_EQ(cache.slots[token],
                token < 50 ? MarkedSlot(cache.slot_mapping[token]) : kNotWritten)
          << token;
    }
    EXPECT_EQ(cache.step.fault, 0u);
  }
}

TYPED_TEST(SnapshotKernelOf, MarksRowsThatMissARouteInThisStepOnly) {  // H2
  Cache<TypeParam> cache(2, 8, 50, 100);
  cache.slot_mapping[3] = 0;
  cache.missing_step[3] = kStep;
  cache.missing_step[4] = kStep - 1;
  cache.missing_step[60] = kStep;
  cache.run();
  for (std::int64_t token = 0; token < 50; ++token) {
    const Slot slot = cache.slot_mapping[token];
    EXPECT_EQ(cache.slots[token], token == 3 ? MarkedSlot::missing(slot) : MarkedSlot(slot))
        << token;
  }
}

TYPED_TEST(SnapshotKernelOf, ReportsASlotOutsideTheBuffer) {
  for (const Slot bad : {Slot(-1), Slot(kSlots)}) {
    for (const bool missing : {false, true}) {
      Cache<TypeParam> cache(2, 8, 50, 100);
      cache.slot_mapping[49] = bad;
      cache.missing_step[49] = missing ? kStep : 0;
      cache.run();
      EXPECT_EQ(cache.step.fault, static_cast<std::uint32_t>(DeviceFault::slot));
      EXPECT_EQ(cache.step.fault_token, 49);
      EXPECT_EQ(cache.step.fault_value, bad.value());
      // Neither as a slot nor as a marked one may it look like one that exists.
      EXPECT_EQ(cache.slots[49], kBadSlot);
    }
  }
}

class ReportOf : public ::testing::TestWithParam<std::int64_t> {};
INSTANTIATE_TEST_SUITE_P(Wanted, ReportOf, ::testing::Values(-1, 0, 7));

TEST_P(ReportOf, CopiesWhatTheStepFound) {
  const std::int64_t wanted = GetParam();
  for (const int lanes : test::kLaneCounts) {
    for (const std::int64_t rows : {0, 1, 12, 60}) {
      Cache<std::uint8_t> cache(5, 8, rows, 100);
      cache.step.num_tokens = 12;
      cache.step.fault = 1;
      cache.step.fault_layer = 2;
      cache.step.fault_token = 3;
      cache.step.fault_value = 4;
      cache.captured = {7, 6, 7, 0, 7};
      cache.kernel.head.wanted = wanted;
      cache.run(lanes);
      EXPECT_TRUE(std::ranges::equal(cache.record_captured, cache.captured, {}, &Step::value));
      const StepReport& report = cache.report;
      EXPECT_EQ(report.step, Step(kStep));
      EXPECT_EQ(report.num_tokens, wanted < 0 ? 12 : wanted);
      EXPECT_EQ(report.step_tokens, 12);
      EXPECT_EQ(report.fault, 1u);
      EXPECT_EQ(report.fault_layer, 2);
      EXPECT_EQ(report.fault_token, 3);
      EXPECT_EQ(report.fault_value, 4);
      EXPECT_EQ(cache.step.finished, 0u);
    }
  }
}

// Whichever block finds it: the head is written when all blocks are done, and in every launch.
TEST(Report, HasTheFaultOfAnyBlockOfTheSnapshot) {
  for (const int lanes : test::kLaneCounts) {
    for (std::size_t bad = 0; bad < 90; bad += 7) {
      Cache<std::uint16_t> cache(5, 8, 90, 100);
      for (int again = 0; again < 2; ++again) {
        cache.slot_mapping[bad] = Slot(kSlots + again);
        cache.step.fault = 0;
        cache.run(lanes);
        EXPECT_EQ(cache.report.fault, static_cast<std::uint32_t>(DeviceFault::slot));
        EXPECT_EQ(cache.report.fault_token, static_cast<std::int64_t>(bad));
        EXPECT_EQ(cache.report.fault_value, kSlots + again);
      }
    }
  }
}

TEST(BeginStepKernel, ReplacesTheStepAndItsFault) {
  DeviceStep step{.step = 6,
                  .num_tokens = 12,
                  .dp_row = 5,
                  .fault = 1,
                  .fault_layer = 2,
                  .fault_token = 3,
                  .fault_value = 4};
  test::run_kernel(
      BeginStepKernel{.step = &step, .value = {.step = kStep, .num_tokens = 9, .dp_row = 1}}, 1,
      32);
  EXPECT_EQ(step.step, kStep);
  EXPECT_EQ(step.num_tokens, 9);
  EXPECT_EQ(step.dp_row, 1);
  EXPECT_EQ(step.fault, 0u);
}

}  // namespace
}  // namespace moetap
