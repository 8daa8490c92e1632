// Single lies in the shared memory of the `shm` transport, and what each of them must end in.
#include <moetap/error.h>
#include <moetap/read_transport.h>

#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <string>
#include <vector>

#include "ipc/internal/names.h"
#include "ipc/internal/native_layout.h"
#include "ipc/internal/segment.h"
#include "ipc/internal/shm_writer.h"
#include "ipc/internal/wire_layout.h"
#include "test/ipc/message_of.h"
#include "test/ipc/shm_test.h"

namespace moetap {
namespace {

using test::ChildProcess;
using test::contains;
using test::kPatience;
using test::message_of;
using test::rows_of;
using test::state_of;
using Slots = std::vector<Slot>;

class ScribbledSegment : public test::ShmTest {
 protected:
  void publish(Step step, const test::Stored& slots) {
    writer.publish(step, slots, rows_of(endpoint.shape, step, slots));
  }

  ShmWriter writer{endpoint};
  Segment segment = Segment::open(buffer_name(endpoint));
  ShmControl& control = *reinterpret_cast<ShmControl*>(segment.bytes().data());
};

TEST_F(ScribbledSegment, AnImpossibleShapeIsRefusedInWords) {
  const ControlFields good = control.head.fields;
  const auto expect_refused = [&](auto scribble, const std::string& named) {
    control.head.fields = good;
    scribble(control.head.fields);
    const std::string text = message_of<MismatchError>([&] { (void)make_shm_reader(endpoint); });
    EXPECT_TRUE(contains(text, named)) << text;
  };
  constexpr int kMost = std::numeric_limits<int>::max();
  expect_refused([](auto& f) { f.num_layers = kMost; }, "2147483647 layers");
  expect_refused([](auto& f) { f.num_layers = -1; }, "-1 layers");
  expect_refused([](auto& f) { f.num_layers = ModelShape::kMaxLayers; }, "layer");
  expect_refused([](auto& f) { f.top_k = kMost; }, "2147483647");
  expect_refused([](auto& f) { f.num_experts = -5; }, "-5");
  expect_refused([](auto& f) { f.moe_layers[0] = 77; }, "layer");
  expect_refused([](auto& f) { f.num_hidden_layers = kMost; }, "num_hidden_layers is 2147483647");
  expect_refused([](auto& f) { f.repeats_experts = 7; }, "repeated experts (7;");
  expect_refused([](auto& f) { f.num_slots = -1; }, "num_slots -1");
  expect_refused([](auto& f) { f.max_tokens = 1 << 30; }, "max_tokens 1073741824");
  control.head.fields = good;
  EXPECT_EQ(make_shm_reader(endpoint)->poll(), Step(0));
}

TEST_F(ScribbledSegment, CountersOutOfTheirRangeDoNoHarm) {
  const auto reader = make_shm_reader(endpoint);
  control.num_failed = std::numeric_limits<std::uint64_t>::max() - 1;
  for (Step step = 1; step <= 4; ++step) {
    writer.fail(step, {}, "why");
    EXPECT_THROW(reader->wait_for(step, kPatience), StepFailed);
  }
  control.last_step = Step::max();
  EXPECT_THROW(reader->wait_for(1000, kPatience), MismatchError);
  control.wake.sleepers = std::numeric_limits<std::uint32_t>::max();
  publish(5, {1});
  EXPECT_EQ(state_of(*reader, 1), RowState::present);
}

// A window of several steps ends with one that has come: else a row of an older one, which the step
// that is to come writes again, would pass for the last.
TEST_F(ScribbledSegment, AStepThatWasOnlyAnnouncedHasNotCome) {
  publish(1, {1});
  const auto reader = make_shm_reader(endpoint);
  reader->wait_for(1, kPatience);
  control.last_step = 9;
  const std::string text = message_of<MismatchError>([&] { state_of(*reader, 1, {1, 9}); });
  EXPECT_TRUE(contains(text, "announces step 9")) << text;
  EXPECT_THROW(reader->poll(), MismatchError);
  EXPECT_THROW(reader->wait_for(9, kPatience), MismatchError);
  EXPECT_THROW(make_shm_reader(endpoint)->poll(), MismatchError);
  control.last_step = 0;  // and what this reader has seen does not go away
  EXPECT_THROW(reader->poll(), MismatchError);
  publish(2, {1});
  EXPECT_EQ(reader->poll(), Step(2));
  EXPECT_EQ(state_of(*reader, 1, {1, 2}), RowState::present);
}

// A stamp that is set to the mark of a row being written is not taken for a slot that comes twice:
// the step is refused with what is wrong, and nothing has changed.
TEST_F(ScribbledSegment, AMarkThatNobodySetIsAnErrorOfItsOwnAndLeavesTheOtherRows) {
  publish(1, {1, 2});
  const auto reader = make_shm_reader(endpoint);
  auto* stamps = reinterpret_cast<Step*>(segment.bytes().data() + sizeof(ShmControl));
  stamps[2] = kWriting;
  EXPECT_EQ(state_of(*reader, 2), RowState::missing);
  for (const test::Stored& slots : {test::Stored{1, 2}, test::Stored{1, ~2}}) {
    const std::string text = message_of<MismatchError>([&] { publish(2, slots); });
    EXPECT_TRUE(contains(text, "slot 2 ")) << text;
    EXPECT_TRUE(contains(text, "overwritten")) << text;
  }
  EXPECT_TRUE(contains(message_of<ArgumentError>([&] {
                         publish(2, {1, ~1, 2});
                       }),
                       "slot 1 comes twice"));
  EXPECT_EQ(state_of(*reader, 1, {1, 1}), RowState::present);
  writer.fail(2, unmarked(Slots{1, 2}), "slot 2 was marked");
  publish(3, {1, 2});
  EXPECT_EQ(state_of(*reader, 2, {3, 3}), RowState::present);
}

// The process at the other end of the wire layout changes an id while it is looked at. The reader
// must see the row as it was at one time: a good one, or a bad one with its bad id.
TEST_F(ScribbledSegment, AWireRowThatChangesUnderItsReaderIsGoodOrNamed) {
  endpoint.layout = ShmLayout::wire;
  endpoint.shape = ModelShape::uniform(128, 8, 256);  // long enough to change on the way
  ShmWriter wire(endpoint);
  const auto reader = make_shm_reader(endpoint);
  std::vector<std::byte> row(endpoint.shape.row_bytes());  // experts 0 to 7 at each layer
  for (std::size_t i = 0; i < row.size(); ++i) row[i] = static_cast<std::byte>(i % 8);
  wire.publish(1, unmarked(Slots{0}), row);
  ChildProcess neighbour([&] {
    const Segment own = Segment::open(buffer_name(endpoint));
    auto* id = reinterpret_cast<WireId*>(own.bytes().data()) + endpoint.shape.row_ids() - 1;
    for (;;) {
      std::atomic_ref(*id).store(4711, std::memory_order_relaxed);
      std::atomic_ref(*id).store(7, std::memory_order_relaxed);
      for (int i = 0; i < 100; ++i) std::atomic_ref(*id).load(std::memory_order_relaxed);
    }
  });
  const Slots same(10);  // slot 0, again and again
  for (int i = 0; i < 40'000; ++i) {
    try {
      EXPECT_EQ(test::read(*reader, same).states.back(), RowState::unverified);
    } catch (const RangeError& error) {
      ASSERT_TRUE(contains(error.what(), "layer 127: expert id 4711")) << error.what();
    }
  }
}

}  // namespace
}  // namespace moetap
