#include <moetap/error.h>
#include <moetap/read_transport.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ipc/internal/channel.h"
#include "test/ipc/child_process.h"
#include "test/ipc/message_of.h"
#include "test/ipc/step_records.h"
#include "test/ipc/test_endpoint.h"

namespace moetap {
namespace {

using test::ChildProcess;
using test::contains;
using test::describe;
using test::message_of;
using test::row_of;
using test::send_step;
using test::Signal;
using test::write_record;
using Slots = std::vector<Slot>;

constexpr Milliseconds kPatience{test::kPatienceMs};
constexpr StepWindow kAny{};

struct Rows {
  std::vector<std::byte> bytes;
  std::vector<RowState> states;
};

Rows read(SlotReadTransport& reader, const Slots& slots, StepWindow window = kAny) {
  Rows rows{std::vector<std::byte>(slots.size() * reader.shape().row_bytes()),
            std::vector<RowState>(slots.size())};
  reader.read(slots, {&window, 1}, rows.bytes, rows.states);
  return rows;
}

// The slot's row must be the one that `step` wrote for its token `i`, or in that other state.
void expect_row(SlotReadTransport& reader, Slot slot, Step step, std::size_t i,
                StepWindow window = kAny) {
  const Rows rows = read(reader, {slot}, window);
  EXPECT_EQ(rows.states[0], RowState::present) << "slot " << slot;
  EXPECT_EQ(rows.bytes, row_of(step, i, reader.shape().row_bytes())) << "slot " << slot;
}

void expect_missing(SlotReadTransport& reader, const Slots& slots) {
  const Rows rows = read(reader, slots);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    EXPECT_EQ(rows.states[i], RowState::missing) << "slot " << slots[i];
  }
  EXPECT_TRUE(std::ranges::all_of(rows.bytes, [](std::byte b) { return b == std::byte{0xFF}; }));
}

// The test makes the worker's end, in another process.
using DeviceReaderInTwoProcesses = test::EndpointTest;

// Both ends in this process, each with a mapping of its own.
class DeviceReaderTest : public test::EndpointTest {
 protected:
  void send(Step step, const test::Stored& slots) {
    send_step(producer, endpoint.shape, step, slots);
  }

  // A step that the worker believes in, but with a record that was spoiled.
  template <class Spoil>
  void send_spoiled(Step step, const test::Stored& slots, Spoil spoil) {
    StepRecordView record = write_record(producer.acquire(), endpoint.shape, step, slots);
    spoil(record);
    producer.commit(describe(Descriptor::Kind::step, step, slots.size()));
  }

  void send_failure(Step step, const test::Stored& slots, const char* text) {
    write_record(producer.acquire(), endpoint.shape, step, slots);
    Descriptor descriptor = describe(Descriptor::Kind::failed_step, step, slots.size());
    std::snprintf(descriptor.text, sizeof descriptor.text, "%s", text);
    producer.commit(descriptor);
  }

  ChannelProducer producer{endpoint};
  std::unique_ptr<SlotReadTransport> reader = make_device_reader(endpoint);
};

TEST_F(DeviceReaderTest, KnowsNoStepAndNoRowAtFirst) {
  EXPECT_EQ(reader->poll(), Step(0));
  EXPECT_EQ(reader->num_slots(), endpoint.num_slots);
  EXPECT_EQ(reader->shape(), endpoint.shape);
  Slots all(64);
  std::iota(all.begin(), all.end(), Slot(0));
  expect_missing(*reader, all);
}

TEST_F(DeviceReaderInTwoProcesses, ReturnsEveryRowThatWasPublished) {
  constexpr Step kSteps = 300;
  endpoint.num_slots = 512;
  endpoint.max_tokens = 64;
  // Each step takes a drawn number of drawn slots; both sides draw the same.
  const auto slots_of_step = [&](Step step) {
    std::mt19937_64 random(step.value());
    Slots slots(512);
    std::iota(slots.begin(), slots.end(), Slot(0));
    std::ranges::shuffle(slots, random);
    slots.resize(random() % 65);
    return slots;
  };
  ChildProcess worker([&] {
    ChannelProducer producer(endpoint);
    for (Step step = 1; step <= kSteps; ++step) {
      send_step(producer, endpoint.shape, step, slots_of_step(step));
    }
    for (int i = 0; i < endpoint.ring_depth; ++i)
      (void)producer.acquire();  // until all is taken in
  });
  auto reader = make_device_reader(endpoint);
  std::vector<std::pair<Step, std::size_t>> expected(512);  // by slot: who wrote it
  for (Step step = 1; step <= kSteps; ++step) {
    reader->wait_for(step, kPatience);
    const Slots slots = slots_of_step(step);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      expected[static_cast<std::size_t>(slots[i].value())] = {step, i};
    }
    if (step.value() % 50 != 0) continue;
    for (Slot slot = 0; slot < 512; ++slot) {
      const auto [writer, i] = expected[static_cast<std::size_t>(slot.value())];
      if (writer != 0) expect_row(*reader, slot, writer, i);
    }
  }
  EXPECT_EQ(reader->poll(), kSteps);
  EXPECT_EQ(worker.join(), 0);
}

TEST_F(DeviceReaderTest, ARowWithAMissingRouteIsMissing) {
  send(1, {3, 4, 5});
  send(2, {3, ~4, 6});
  reader->wait_for(2, kPatience);
  expect_row(*reader, 3, 2, 0);
  expect_missing(*reader, {4});
  expect_row(*reader, 5, 1, 2);
  expect_row(*reader, 6, 2, 2);
}

TEST_F(DeviceReaderTest, AStepWithoutTokensIsAStep) {
  send(1, {});
  reader->wait_for(1, kPatience);
  EXPECT_EQ(reader->poll(), Step(1));
}

// H11: what is asked for is what is taken in, so that a later step clobbers nothing early.
TEST_F(DeviceReaderTest, AWaitLeavesLaterStepsInTheRingAndAReadTakesNothingIn) {
  send(1, {0, 1});
  send(2, {1, 2});
  reader->wait_for(1, kPatience);
  expect_row(*reader, 1, 1, 1);
  expect_missing(*reader, {2});
  EXPECT_EQ(reader->poll(), Step(2));  // this takes in all there is
  expect_row(*reader, 1, 2, 0);
}

// H11
TEST_F(DeviceReaderTest, ARowOfALaterOwnerIsClobberedAndOneOfAnEarlierStale) {
  send(3, {7});
  reader->wait_for(3, kPatience);
  EXPECT_EQ(read(*reader, {7}, {1, 2}).states[0], RowState::clobbered);
  EXPECT_EQ(read(*reader, {7}, {4}).states[0], RowState::stale);
  EXPECT_EQ(read(*reader, {7}, {3, 3}).states[0], RowState::present);
}

// H17: a rejected token's row looks present until the step that computes it again has come.
TEST_F(DeviceReaderTest, AReadAheadOfTheLastStepIsRefused) {
  send(5, {7});
  send(6, {7});
  reader->wait_for(5, kPatience);
  const std::string text = message_of<StateError>([&] { read(*reader, {7}, {1, 6}); });
  EXPECT_TRUE(contains(text, "up to step 6, but the last step that has arrived is 5")) << text;
  reader->wait_for(6, kPatience);
  expect_row(*reader, 7, 6, 0);
}

TEST_F(DeviceReaderTest, AFailedStepTakesItsRowsAlongAndTheNextStepGoesOn) {
  send(1, {0, 1, 2, 3});
  send_failure(2, {1, ~2, 64, 1'000'000}, "layer 2 was not captured");
  send(3, {2, 9});
  reader->wait_for(3, kPatience);
  const std::string text = message_of<StepFailed>([&] { reader->wait_for(2, kPatience); });
  EXPECT_TRUE(contains(text, "step 2 failed: layer 2 was not captured")) << text;
  expect_row(*reader, 0, 1, 0, {1, 1});
  expect_missing(*reader, {0, 1, 3});  // step 2 may have written anywhere
  expect_row(*reader, 2, 3, 0);
  expect_row(*reader, 3, 1, 3, {1, 1});
  expect_row(*reader, 9, 3, 1);
  reader->wait_for(1, kPatience);
  reader->wait_for(0, kPatience);
}

TEST_F(DeviceReaderTest, RemembersTheReasonsOfTheLatestSixtyFourFailures) {
  send_failure(1, {5}, "the first");
  for (Step step = 2; step <= 65; ++step) {
    reader->poll();
    send_failure(step, {5}, ("number " + std::to_string(step.value())).c_str());
  }
  reader->poll();
  EXPECT_TRUE(contains(message_of<StepFailed>([&] { reader->wait_for(1, kPatience); }),
                       "why is not known any more"));
  for (Step step = 2; step <= 65; ++step) {
    const std::string text = message_of<StepFailed>([&] { reader->wait_for(step, kPatience); });
    EXPECT_TRUE(contains(text, "number " + std::to_string(step.value()))) << text;
  }
  expect_missing(*reader, {5});
}

// The rows of a record that says it is good must be checked here again: nothing of a bad one may
// become visible, and what it would have overwritten is gone. Once for each thing that can be bad.
TEST_F(DeviceReaderTest, ARecordThatOnlyClaimsToBeGoodIsAFailedStep) {
  Step step = 0;
  const auto expect_failed = [&](const test::Stored& slots, auto spoil, const std::string& named) {
    send(++step, {10, 11, 12});
    send_spoiled(++step, slots, spoil);
    const std::string text = message_of<StepFailed>([&] { reader->wait_for(step, kPatience); });
    EXPECT_TRUE(contains(text, named)) << text;
    for (const MarkedSlot marked : slots) {
      const Slot slot = marked.slot();
      if (slot < Slot(endpoint.num_slots)) expect_missing(*reader, {slot});
    }
    expect_row(*reader, 12, step - 1, 2, {step - 1, step - 1});  // not of that step
  };
  const auto nothing = [](const StepRecordView&) {};
  // H3
  expect_failed(
      {10, 11}, [](const StepRecordView& r) { r.captured[1] -= 1; }, "layer 1");
  expect_failed(
      {10, 11}, [](const StepRecordView& r) { r.report->step -= 1; }, "expected");
  expect_failed(
      {10, 11}, [](const StepRecordView& r) { r.report->num_tokens = 1; }, "expected");
  // H21
  expect_failed(
      {10, 11},
      [](const StepRecordView& r) {
        r.report->fault = static_cast<std::uint32_t>(DeviceFault::expert_id);
        r.report->fault_value = 16;
      },
      "expert id 16");
  expect_failed({10, 64, 11}, nothing, "slot 64");
  expect_failed({10, ~64, 11}, nothing, "slot 64");
  expect_failed({10, Slot::max().value(), 11}, nothing, "outside");
  expect_failed({10, Slot::min().value(), 11}, nothing, "outside");
  expect_failed({10, 11, 10}, nothing, "slot 10 comes twice");
  send(++step, {10});
  reader->wait_for(step, kPatience);
  expect_row(*reader, 10, step, 0);
}

// Whose slots these are is not known.
TEST_F(DeviceReaderTest, H37ARecordOfAnotherStepHidesOlderRowsFromWindowsThatIncludeItsStep) {
  send(1, {12});
  send_spoiled(2, {10}, [](const StepRecordView& r) { r.captured[1] -= 1; });
  reader->poll();
  expect_row(*reader, 12, 1, 0, {1, 2});  // it wrote to slot 10
  send_spoiled(3, {10}, [](const StepRecordView& r) { r.report->step = 2; });
  reader->poll();
  EXPECT_EQ(read(*reader, {12}, {1, 3}).states[0], RowState::missing);
  expect_row(*reader, 12, 1, 0, {1, 1});
  send(4, {12});
  send_spoiled(5, {10}, [](const StepRecordView& r) { r.report->num_tokens = 2; });
  reader->poll();
  EXPECT_EQ(read(*reader, {12}, {4, 5}).states[0], RowState::missing);
}

TEST_F(DeviceReaderTest, AStepThatDoesNotGoUpIsAMismatchAndChangesNothing) {
  send(5, {1});
  reader->wait_for(5, kPatience);
  send(5, {1, 2});
  const std::string text = message_of<MismatchError>([&] { reader->poll(); });
  EXPECT_TRUE(contains(text, "step 5 after step 5")) << text;
  EXPECT_THROW(reader->wait_for(6, kPatience), MismatchError);
  expect_row(*reader, 1, 5, 0);
  expect_missing(*reader, {2});
}

TEST_F(DeviceReaderTest, ARecordOfThePerRequestKindNamesTheRightReader) {
  (void)producer.acquire();
  producer.commit(describe(Descriptor::Kind::step_done, 1, 0));
  const std::string text = message_of<MismatchError>([&] { reader->poll(); });
  EXPECT_TRUE(contains(text, "make_request_reader")) << text;
}

TEST_F(DeviceReaderTest, AReadThatCannotBeDoneTouchesNothing) {
  std::vector<std::byte> bytes(2 * endpoint.shape.row_bytes(), std::byte{7});
  std::vector<RowState> states(2, RowState::stale);
  const auto expect_untouched = [&] {
    EXPECT_TRUE(std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{7}; }));
    EXPECT_TRUE(std::ranges::all_of(states, [](RowState s) { return s == RowState::stale; }));
  };
  EXPECT_THROW(reader->read(Slots{0, 64}, {&kAny, 1}, bytes, states), RangeError);
  expect_untouched();
  EXPECT_THROW(reader->read(Slots{0, -1}, {&kAny, 1}, bytes, states), RangeError);
  expect_untouched();
  EXPECT_THROW(reader->read(Slots{0}, {&kAny, 1}, bytes, states), ArgumentError);
  expect_untouched();
}

TEST_F(DeviceReaderTest, AWaitForAStepThatDoesNotComeNamesIt) {
  send(1, {1});
  const std::string text = message_of<TimeoutError>([&] { reader->wait_for(2, Milliseconds(20)); });
  EXPECT_TRUE(contains(text, "step 2")) << text;
  EXPECT_TRUE(contains(text, "20 ms")) << text;
  EXPECT_TRUE(contains(text, "the last step that came is 1")) << text;
  expect_row(*reader, 1, 1, 0);
  EXPECT_THROW(reader->wait_for(2, Milliseconds(-1)), TimeoutError);
}

TEST_F(DeviceReaderTest, AWaitWithoutTimeTakesInWhatIsThere) {
  send(1, {1});
  send(2, {2});
  reader->wait_for(2, Milliseconds(0));
  expect_row(*reader, 2, 2, 0);
}

TEST_F(DeviceReaderInTwoProcesses, AWaitForAWorkerThatDiesEndsAtOnceAndSaysSo) {
  Signal attached;
  ChildProcess worker([&] {
    ChannelProducer producer(endpoint);
    attached.wait();
    send_step(producer, endpoint.shape, 1, Slots{1});
    raise(SIGKILL);
  });
  auto reader = make_device_reader(endpoint);
  attached.raise();
  const auto start = std::chrono::steady_clock::now();
  const std::string text =
      message_of<TimeoutError>([&] { reader->wait_for(2, Milliseconds::max()); });
  EXPECT_LT(std::chrono::steady_clock::now() - start, kPatience);
  EXPECT_TRUE(contains(text, "died")) << text;
  expect_row(*reader, 1, 1, 0);  // what came before is good
}

TEST_F(DeviceReaderInTwoProcesses, OneThatTakesOverHasNoneOfTheRowsThatWereTakenInBefore) {
  Signal taken;
  ChildProcess first([&] {
    auto reader = make_device_reader(endpoint);
    reader->wait_for(1, kPatience);
    taken.raise();
    pause();
  });
  ChannelProducer producer(endpoint);
  send_step(producer, endpoint.shape, 1, Slots{1});
  taken.wait();
  first.kill();
  send_step(producer, endpoint.shape, 2, Slots{2});
  auto reader = make_device_reader(endpoint);
  reader->wait_for(2, kPatience);
  expect_missing(*reader, {1});
  expect_row(*reader, 2, 2, 0);
}

TEST_F(DeviceReaderInTwoProcesses, AnotherShapeOrAnAbsentWorkerIsAnError) {
  endpoint.timeout = Milliseconds(20);
  EXPECT_THROW(make_device_reader(endpoint), TimeoutError);
  ChannelProducer producer(endpoint);
  endpoint.shape = ModelShape::uniform(3, 2, 17);
  EXPECT_THROW(make_device_reader(endpoint), MismatchError);
}

}  // namespace
}  // namespace moetap
