#include "lib/internal/step_record.h"

#include <moetap/error.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>
#include <string>
#include <vector>

#include "test/lib/throws.h"

namespace moetap {
namespace {

using test::expect_throw;

constexpr Step kStep = 7;
constexpr std::int64_t kSlots = 100;

// A record of a good step of 4 tokens, to be damaged.
class StepRecord : public testing::Test {
 protected:
  StepRecord() {
    *view.report = {kStep, 4, 4, 0, 0, 0, 0};
    std::fill(view.captured.begin(), view.captured.end(), kStep);
    for (int i = 0; i < 4; ++i) view.slots[i] = MarkedSlot(Slot(96 + i));
  }

  std::string fault() { return fault_of(view, shape, kStep, kSlots).value_or(""); }
  void fail(DeviceFault fault, std::int32_t layer, std::int64_t token, std::int64_t value) {
    *view.report = {kStep, 4, 4, static_cast<std::uint32_t>(fault), layer, token, value};
  }
  void expect_fault(const std::vector<std::string>& words) {
    const std::string text = fault();
    for (const std::string& word : words) {
      EXPECT_NE(text.find(word), std::string::npos) << "\"" << word << "\" is not in: " << text;
    }
  }

  struct alignas(64) Line {
    std::byte bytes[64];
  };
  ModelShape shape{{3, 5, 6, 7, 17}, 2, 300};
  std::vector<Line> memory{StepRecordLayout(shape, 4).bytes / 64};
  StepRecordView view{shape, 4, std::as_writable_bytes(std::span(memory))};
};

TEST_F(StepRecord, PartsAreAlignedAndDoNotOverlap) {
  for (const std::int64_t tokens : {0, 1, 7, 8, 9, 2048}) {
    const StepRecordLayout layout(shape, tokens);
    const auto n = static_cast<std::size_t>(tokens);
    for (const std::size_t offset : {layout.captured, layout.slots, layout.rows, layout.bytes}) {
      EXPECT_EQ(offset % 64, 0u);
    }
    EXPECT_GE(layout.captured, sizeof(StepReport));
    EXPECT_GE(layout.slots, layout.captured + 5 * sizeof(Step));
    EXPECT_GE(layout.rows, layout.slots + n * 8);
    EXPECT_GE(layout.bytes, layout.rows + n * shape.row_bytes());
    EXPECT_LT(layout.bytes, layout.rows + n * shape.row_bytes() + 64);
  }
}

TEST_F(StepRecord, FewerTokensAreAShorterRecord) {
  EXPECT_LT(StepRecordLayout(shape, 100).bytes, StepRecordLayout(shape, 200).bytes);
}

TEST_F(StepRecord, ViewCoversItsParts) {
  EXPECT_EQ(view.captured.size(), 5u);
  EXPECT_EQ(view.slots.size(), 4u);
  EXPECT_EQ(view.rows.size(), 4 * shape.row_bytes());
  const StepRecordLayout layout(shape, 4);
  auto* base = reinterpret_cast<std::byte*>(view.report);
  EXPECT_EQ(view.rows.data(), base + layout.rows);
  EXPECT_EQ(reinterpret_cast<std::byte*>(view.slots.data()), base + layout.slots);
}

TEST_F(StepRecord, RefusesMemoryThatCannotHoldIt) {
  auto bytes = std::as_writable_bytes(std::span(memory));
  expect_throw<ArgumentError>([&] { StepRecordView(shape, 4, bytes.first(bytes.size() - 1)); },
                              {"4 tokens", std::to_string(bytes.size() - 1)});
  expect_throw<ArgumentError>([&] { StepRecordView(shape, 0, bytes.subspan(4)); }, {"aligned"});
  expect_throw<ArgumentError>([&] { StepRecordLayout(shape, -1); }, {"-1"});
  expect_throw<ArgumentError>([&] { StepRecordLayout(shape, std::int64_t{1} << 62); }, {"tokens"});
}

TEST_F(StepRecord, GoodStepHasNoFault) {
  EXPECT_EQ(fault(), "");
  view.slots[0] = MarkedSlot(0);
  view.slots[1] = MarkedSlot::missing(99);
  EXPECT_EQ(fault(), "");
}

TEST_F(StepRecord, AnotherStepOrTokenCountIsAFault) {  // H14, H15
  view.report->step = kStep + 1;
  expect_fault({"step 8", "step 7"});
  view.report->step = kStep;
  view.report->num_tokens = 5;
  expect_fault({"5 tokens", "4"});
}

TEST_F(StepRecord, LayersThatWereNotCapturedAreNamedByTheModelsIds) {  // H3
  view.captured[1] = kStep - 1;
  expect_fault({"layer 5 was not captured"});
  view.captured[2] = view.captured[3] = 0;
  view.captured[4] = kStep + 1;
  expect_fault({"layers 5-7, 17 were not captured", "capture()"});
}

TEST_F(StepRecord, StepWithoutTokensNeedsNoLayers) {
  std::vector<Line> empty(StepRecordLayout(shape, 0).bytes / 64);
  StepRecordView record(shape, 0, std::as_writable_bytes(std::span(empty)));
  *record.report = {kStep, 0, 0, 0, 0, 0, 0};
  EXPECT_EQ(fault_of(record, shape, kStep, kSlots), std::nullopt);
}

TEST_F(StepRecord, DeviceFaultsNameLayerTokenAndValue) {
  fail(DeviceFault::expert_id, 4, 2, 300);  // H20
  expect_fault({"layer 17", "token 2", "id 300", "[0, 300)", "logical"});
  fail(DeviceFault::slot, 0, 3, -5);
  expect_fault({"token 3", "slot -5", "[0, 100)"});
  fail(DeviceFault::layer_twice, 1, 0, 0);  // H1
  expect_fault({"layer 5", "twice"});
  fail(DeviceFault::rows, 2, 0, 3);
  view.report->step_tokens = 9;  // of which the record has those that are wanted
  expect_fault({"layer 6", "3 rows", "9 tokens"});
  fail(DeviceFault::pick, 4, 2, 11);  // H27
  expect_fault({"layer 17", "token 2", "pick 11", "shared_expert_columns"});
}

TEST_F(StepRecord, UnknownFaultOrLayerIsStillAFault) {
  fail(static_cast<DeviceFault>(77), 0, 0, 0);
  expect_fault({"77"});
  for (const int layer : {-1, 5}) {
    fail(DeviceFault::layer_twice, layer, 0, 0);
    expect_fault({"layer index " + std::to_string(layer)});
  }
}

TEST_F(StepRecord, SlotsAreCheckedOnTheHostToo) {
  for (const MarkedSlot bad :
       {MarkedSlot(100), MarkedSlot::missing(100), MarkedSlot(Slot::min())}) {
    view.slots[2] = bad;
    expect_fault({"row 2", "slot " + std::to_string(bad.slot().value()), "[0, 100)"});
  }
}

}  // namespace
}  // namespace moetap
