// The two ends of the `shm` transport in its native layout, mostly in two processes.
#include <moetap/error.h>
#include <moetap/read_transport.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "ipc/internal/names.h"
#include "ipc/internal/native_layout.h"
#include "ipc/internal/shm_writer.h"
#include "test/ipc/child_process.h"
#include "test/ipc/message_of.h"
#include "test/ipc/shm_test.h"

namespace moetap {
namespace {

using test::ChildProcess;
using test::contains;
using test::kPatience;
using test::message_of;
using test::read;
using test::rows_of;
using test::Signal;
using test::state_of;

using Slots = std::vector<Slot>;

class ShmTransport : public test::ShmTest {
 protected:
  void publish(ShmWriter& writer, Step step, const test::Stored& slots) const {
    writer.publish(step, slots, rows_of(endpoint.shape, step, slots));
  }
  // All present, and the rows of that step.
  void expect_rows(SlotReadTransport& reader, Step step, const Slots& slots) const {
    const auto got = read(reader, slots, {step, step});
    for (const RowState state : got.states) EXPECT_EQ(state, RowState::present);
    EXPECT_EQ(got.rows, rows_of(endpoint.shape, step, slots));
  }
};

TEST_F(ShmTransport, WhatOneProcessPublishesAnotherReads) {
  constexpr Step kSteps = 500;
  Signal read_all;
  const auto slots_of_step = [](Step step) {
    Slots slots(8);
    for (std::size_t i = 0; i < 8; ++i) slots[i] = Slot((step.value() * 5 + i) % 64);
    return slots;
  };
  Signal may_go_on;
  ChildProcess worker([&] {
    ShmWriter writer(endpoint);
    for (Step step = 1; step <= kSteps; ++step) {
      publish(writer, step, slots_of_step(step));
      if (step.value() % 2 == 0) may_go_on.wait();
    }
    read_all.wait();
  });
  const auto reader = make_shm_reader(endpoint);
  EXPECT_EQ(reader->shape(), endpoint.shape);
  EXPECT_EQ(reader->num_slots(), endpoint.num_slots);
  for (Step step = 1; step <= kSteps; ++step) {
    reader->wait_for(step, kPatience);
    EXPECT_GE(reader->poll(), step);
    if (step.value() % 2 == 0) {
      expect_rows(*reader, step, slots_of_step(step));
      may_go_on.raise();
    }
  }
  read_all.raise();
  EXPECT_EQ(worker.join(), 0);
}

// All rows of a read were written in one publish, so they are of one step, from end to end.
TEST_F(ShmTransport, RowsThatAreReadWhileTheyAreWrittenAreNeverTorn) {
  constexpr Step kSteps = 3000;
  endpoint.shape = ModelShape::uniform(300, 8, 256);
  const Slots slots{1, 2, 3, 5, 8, 13, 21, 34};
  const std::size_t bytes = slots.size() * endpoint.shape.row_bytes();
  Signal attached;
  Signal finish;
  ChildProcess worker([&] {
    ShmWriter writer(endpoint);
    attached.wait();
    for (Step step = 1; step <= kSteps; ++step) {
      writer.publish(step, unmarked(slots),
                     std::vector<std::byte>(bytes, static_cast<std::byte>(step.value())));
    }
    finish.wait();
  });
  const auto reader = make_shm_reader(endpoint);
  attached.raise();
  reader->wait_for(1, kPatience);
  for (Step seen = 0; seen < kSteps;) {
    seen = reader->poll();
    const auto got = read(*reader, slots, {seen});
    ASSERT_EQ(std::ranges::count(got.states, RowState::present), std::ssize(slots));
    ASSERT_EQ(std::ranges::count(got.rows, got.rows[0]), std::ssize(got.rows)) << "step " << seen;
  }
  finish.raise();
  EXPECT_EQ(worker.join(), 0);
}

// H17: a rejected token's row looks present until the step that computes it again has come.
TEST_F(ShmTransport, AReadAheadOfTheLastStepIsRefused) {
  ShmWriter writer(endpoint);
  const Slots slots = {7};
  publish(writer, 5, slots);
  const auto reader = make_shm_reader(endpoint);
  const std::string text = message_of<StateError>([&] { read(*reader, slots, {1, 6}); });
  EXPECT_TRUE(contains(text, "up to step 6, but the last step that has arrived is 5")) << text;
  publish(writer, 6, slots);
  EXPECT_EQ(read(*reader, slots, {1, 6}).states[0], RowState::present);
}

TEST_F(ShmTransport, LongReadsWithAWindowForEachSlot) {
  endpoint.shape = ModelShape::uniform(300, 8, 1000);  // uint16, 4800 bytes a row
  endpoint.num_slots = 1000;
  endpoint.max_tokens = 1000;
  ShmWriter writer(endpoint);
  Slots slots(1000);
  for (std::size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<Slot>(i);
  publish(writer, 3, slots);
  const auto reader = make_shm_reader(endpoint);
  std::vector<StepWindow> windows(slots.size(), {3, 3});
  windows[500] = {4};
  windows[999] = {1, 2};
  std::vector<std::byte> rows(slots.size() * endpoint.shape.row_bytes());
  std::vector<RowState> states(slots.size());
  reader->read(slots, windows, rows, states);
  auto expected = rows_of(endpoint.shape, 3, slots);
  for (const std::size_t i : {500u, 999u}) {
    std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>(i * endpoint.shape.row_bytes()),
                endpoint.shape.row_bytes(), std::byte{0xFF});
  }
  EXPECT_EQ(rows, expected);
  EXPECT_EQ(states[499], RowState::present);
  EXPECT_EQ(states[500], RowState::stale);
  EXPECT_EQ(states[999], RowState::clobbered);
}

TEST_F(ShmTransport, H10H11StateFollowsFromTheOwnersWindow) {
  ShmWriter writer(endpoint);
  publish(writer, 4, {10, 11});
  publish(writer, 6, {11, 12});
  const auto reader = make_shm_reader(endpoint);
  EXPECT_EQ(state_of(*reader, 10, {4, 6}), RowState::present);
  EXPECT_EQ(state_of(*reader, 10, {5, 6}), RowState::stale);
  EXPECT_EQ(state_of(*reader, 11, {4, 5}), RowState::clobbered);
  EXPECT_EQ(state_of(*reader, 11, {6, 6}), RowState::present);
  EXPECT_EQ(state_of(*reader, 13, {1, 6}), RowState::missing);
  expect_rows(*reader, 6, {11, 12});
}

TEST_F(ShmTransport, H2ARowWithAMissingRouteIsMissing) {
  ShmWriter writer(endpoint);
  publish(writer, 1, {5, 6});
  publish(writer, 2, {5, ~6, 7});
  const auto reader = make_shm_reader(endpoint);
  expect_rows(*reader, 2, {5, 7});
  EXPECT_EQ(state_of(*reader, 6), RowState::missing);
}

TEST_F(ShmTransport, FailedStepIsReportedItsRowsAreMissingAndLaterStepsGoOn) {
  ShmWriter writer(endpoint);
  const auto reader = make_shm_reader(endpoint);
  publish(writer, 1, {1, 2, 3});
  writer.fail(2, test::Stored{2, ~3, endpoint.num_slots, -1'000'000}, "layer 1 was not captured");
  publish(writer, 3, {3, 4});
  reader->wait_for(1, kPatience);
  try {
    reader->wait_for(2, kPatience);
    FAIL() << "no error";
  } catch (const StepFailed& error) {
    EXPECT_EQ(error.step(), Step(2));
    EXPECT_EQ(error.reason(), "layer 1 was not captured");
  }
  reader->wait_for(3, kPatience);
  expect_rows(*reader, 1, {1});
  EXPECT_EQ(state_of(*reader, 2), RowState::missing);
  expect_rows(*reader, 3, {3, 4});
}

TEST_F(ShmTransport, KeepsTheLatestReasonsAndAnEndlessOneFits) {
  ShmWriter writer(endpoint);
  const auto reader = make_shm_reader(endpoint);
  const std::string endless(10'000, 'x');
  for (Step step = 1; step <= 100; ++step)
    writer.fail(step, {}, std::to_string(step.value()) + endless);
  for (Step step = 69; step <= 100; ++step) {
    try {
      reader->wait_for(step, kPatience);
      ADD_FAILURE() << "no error for step " << step;
    } catch (const StepFailed& error) {
      EXPECT_EQ(error.reason().rfind(std::to_string(step.value()) + "xxx", 0), 0u)
          << error.reason();
    }
  }
}

// Every second of many steps fails: none that did is said to have succeeded, however long ago.
TEST_F(ShmTransport, KnowsFailuresOfLongAgoAndSaysSoWhereItDoesNot) {
  ShmWriter writer(endpoint);
  const auto reader = make_shm_reader(endpoint);
  constexpr Step kLast = 2 * ShmControl::kFailedSteps;
  for (Step step = 1; step <= kLast; step += 2) {
    writer.fail(step, {}, "because");
    writer.publish(step + 1, {}, {});
  }
  const auto failure = [&](Step step) {
    return message_of<StepFailed>([&] { reader->wait_for(step, kPatience); });
  };
  for (Step step = 1; step <= kLast - 64; step += 2) {
    ASSERT_TRUE(contains(failure(step), "why is not known any more")) << step;
    ASSERT_NO_THROW(reader->wait_for(step + 1, kPatience));
  }
  EXPECT_TRUE(contains(failure(kLast - 63), "because"));
  writer.fail(kLast + 1, {}, "because");
  EXPECT_TRUE(contains(failure(1), "step 1 failed: or not"));
  EXPECT_NO_THROW(reader->wait_for(2, kPatience));
  EXPECT_TRUE(contains(failure(3), "why is not known any more"));
}

TEST_F(ShmTransport, ABadPublishChangesNothingAndTheStepCanStillFail) {
  ShmWriter writer(endpoint);
  const auto reader = make_shm_reader(endpoint);
  publish(writer, 5, {1, 2});
  EXPECT_THROW(publish(writer, 6, {1, endpoint.num_slots}), RangeError);
  EXPECT_THROW(publish(writer, 6, {1, 2, 1}), ArgumentError);
  EXPECT_THROW(publish(writer, 6, Slots(9, 1)), RangeError);
  EXPECT_THROW(publish(writer, 5, {1}), ArgumentError);
  EXPECT_THROW(writer.fail(5, unmarked(Slots{1}), "late"), ArgumentError);
  EXPECT_EQ(reader->poll(), Step(5));
  expect_rows(*reader, 5, {1, 2});
  writer.fail(6, unmarked(Slots{1}), "bad slot");
  EXPECT_THROW(reader->wait_for(6, kPatience), StepFailed);
  EXPECT_EQ(state_of(*reader, 1), RowState::missing);
}

TEST_F(ShmTransport, ABadReadIsRefused) {
  ShmWriter writer(endpoint);
  const auto reader = make_shm_reader(endpoint);
  EXPECT_THROW(state_of(*reader, Slot(endpoint.num_slots)), RangeError);
  EXPECT_THROW(state_of(*reader, -1), RangeError);
  std::vector<RowState> states(1);
  EXPECT_THROW(reader->read(Slots{1}, std::vector<StepWindow>(1), {}, states), ArgumentError);
}

TEST_F(ShmTransport, H22SecondWriterIsAnErrorThatNamesTheFirstAndRanksDoNotMeet) {
  Signal created;
  ChildProcess first([&] {
    ShmWriter writer(endpoint);
    publish(writer, 1, {1});
    created.raise();
    pause();
  });
  created.wait();
  const std::string message = message_of<OwnedError>([&] { ShmWriter second(endpoint); });
  EXPECT_TRUE(contains(message, std::to_string(first.pid()))) << message;
  Endpoint other = endpoint;
  other.dp_rank = 1;
  ShmWriter other_rank(other);
  EXPECT_EQ(make_shm_reader(other)->poll(), Step(0));
  EXPECT_EQ(make_shm_reader(endpoint)->poll(), Step(1));
}

TEST_F(ShmTransport, AReaderOfAnotherShapeOrSizeIsRefusedWithBoth) {
  ShmWriter writer(endpoint);
  Endpoint other = endpoint;
  other.shape = ModelShape::uniform(4, 2, 16);
  std::string message = message_of<MismatchError>([&] { (void)make_shm_reader(other); });
  EXPECT_TRUE(contains(message, endpoint.shape.to_string())) << message;
  EXPECT_TRUE(contains(message, other.shape.to_string())) << message;
  other = endpoint;
  for (const auto& [shape, difference] :
       {std::pair{ModelShape({0, 1, 3}, 2, 16, 4), "MoE layers 0-2 and 0, 1, 3"},
        {ModelShape({0, 1, 2}, 2, 16, 9), "num_hidden_layers 3 and 9"},
        {endpoint.shape.with_repeated_experts(), "repeated experts refused and allowed"}}) {
    other.shape = shape;
    message = message_of<MismatchError>([&] { (void)make_shm_reader(other); });
    EXPECT_TRUE(contains(message, difference)) << message;
  }
  other = endpoint;
  other.num_slots = 65;
  message = message_of<MismatchError>([&] { (void)make_shm_reader(other); });
  EXPECT_TRUE(contains(message, "64")) << message;
  EXPECT_TRUE(contains(message, "65")) << message;
}

TEST_F(ShmTransport, AReaderBeforeTheWorkerWaitsForIt) {
  Signal go;
  Signal finish;
  ChildProcess worker([&] {
    go.wait();
    ShmWriter writer(endpoint);
    publish(writer, 1, {1});
    finish.wait();
  });
  Endpoint hasty = endpoint;
  hasty.timeout = Milliseconds(30);
  const std::string message = message_of<TimeoutError>([&] { (void)make_shm_reader(hasty); });
  EXPECT_TRUE(contains(message, buffer_name(endpoint))) << message;
  go.raise();
  const auto reader = make_shm_reader(endpoint);
  reader->wait_for(1, kPatience);
  expect_rows(*reader, 1, {1});
  finish.raise();
  EXPECT_EQ(worker.join(), 0);
}

TEST_F(ShmTransport, LeavesNothingBehind) {
  {
    const ShmWriter writer(endpoint);
    EXPECT_TRUE(std::filesystem::exists("/dev/shm" + buffer_name(endpoint)));
    EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
  }
  EXPECT_FALSE(std::filesystem::exists("/dev/shm" + buffer_name(endpoint)));
}

TEST_F(ShmTransport, AForkedChildOfTheWorkerTakesNothingAway) {
  std::optional<ShmWriter> writer(std::in_place, endpoint);
  ChildProcess child([&] { writer.reset(); });
  EXPECT_EQ(child.join(), 0);
  EXPECT_EQ(make_shm_reader(endpoint)->poll(), Step(0));
}

TEST_F(ShmTransport, EndpointsAreValidated) {
  endpoint.num_slots = 0;
  EXPECT_THROW(ShmWriter{endpoint}, ArgumentError);
  EXPECT_THROW(make_shm_reader(endpoint), ArgumentError);
}

}  // namespace
}  // namespace moetap
