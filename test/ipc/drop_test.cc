// A worker that does not wait for a full ring drops steps: the scheduler hears of each, in its
// place, and no older row passes for one that a dropped step has overwritten (H36).
#include <moetap/error.h>
#include <moetap/read_transport.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ipc/internal/channel.h"
#include "ipc/internal/names.h"
#include "ipc/internal/ring.h"
#include "ipc/internal/segment.h"
#include "ipc/ring/step_outcomes.h"
#include "lib/internal/number_format.h"
#include "test/ipc/message_of.h"
#include "test/ipc/step_records.h"
#include "test/ipc/test_endpoint.h"

namespace moetap {
namespace {

using test::contains;
using test::message_of;
using test::send_step;
using Slots = std::vector<Slot>;

constexpr Milliseconds kPatience{test::kPatienceMs};
constexpr StepWindow kAny{};

class DropTest : public test::EndpointTest {
 protected:
  DropTest() { endpoint.ring_depth = 2; }

  void send(ChannelProducer& worker, Step step, const Slots& slots) const {
    send_step(worker, endpoint.shape, step, slots);
  }
  static void drop(ChannelProducer& worker, Step step) { worker.drop({step, step, 1}); }
  static RowState state(SlotReadTransport& reader, Slot slot, StepWindow window) {
    std::vector<std::byte> row(reader.shape().row_bytes());
    RowState state{};
    reader.read({&slot, 1}, {&window, 1}, row, {&state, 1});
    return state;
  }
};

TEST_F(DropTest, H36ADroppedStepFailsAndItsRowsAreMissing) {
  ChannelProducer worker(endpoint);
  const auto reader = make_device_reader(endpoint);
  EXPECT_TRUE(worker.has_room());
  send(worker, 1, {3});
  send(worker, 2, {4});
  EXPECT_FALSE(worker.has_room());
  drop(worker, 3);
  EXPECT_EQ(reader->poll(), Step(3));
  EXPECT_NO_THROW(reader->wait_for(2, kPatience));
  const std::string text = message_of<StepFailed>([&] { reader->wait_for(3, kPatience); });
  EXPECT_TRUE(contains(text, "step 3 failed: the worker dropped it")) << text;
  EXPECT_TRUE(contains(text, "poll()")) << text;
  EXPECT_EQ(reader->dropped().count, 1u);
  EXPECT_EQ(reader->dropped().last, Step(3));
  EXPECT_EQ(reader->dropped().given_up, 0u);
  EXPECT_EQ(worker.dropped().count, 1u);
  EXPECT_EQ(worker.dropped().last, Step(3));

  EXPECT_EQ(state(*reader, 3, {1, 1}), RowState::present);
  EXPECT_EQ(state(*reader, 3, {1, 2}), RowState::present);
  EXPECT_EQ(state(*reader, 3, {3, 3}), RowState::missing);
}

TEST_F(DropTest, H36NoOlderRowIsPresentInAWindowWithADroppedStep) {
  ChannelProducer worker(endpoint);
  const auto reader = make_device_reader(endpoint);
  send(worker, 1, {3});
  send(worker, 2, {4});
  drop(worker, 3);
  reader->poll();
  EXPECT_EQ(state(*reader, 3, {1, 3}), RowState::missing);
  EXPECT_EQ(state(*reader, 4, {2, 3}), RowState::missing);
  EXPECT_EQ(state(*reader, 4, kAny), RowState::missing);
  // Nor is it lent.
  const Slots slots{3, 4};
  const std::vector<StepWindow> windows{{1, 3}, {2, 2}};
  std::vector<const std::byte*> rows(2);
  std::vector<RowState> states(2);
  EXPECT_TRUE(reader->lend(slots, windows, rows, states, "test").has_value());
  EXPECT_EQ(states, (std::vector{RowState::missing, RowState::present}));
  EXPECT_EQ(rows[0], nullptr);

  send(worker, 4, {3});
  reader->wait_for(4, kPatience);
  EXPECT_EQ(state(*reader, 3, {1, 4}), RowState::present);
  EXPECT_EQ(state(*reader, 3, kAny), RowState::present);
  EXPECT_EQ(state(*reader, 4, {1, 4}), RowState::missing);
}

TEST_F(DropTest, TellsStepsThatWereGivenUpFromThoseForWhichThereWasNoRoom) {
  ChannelProducer worker(endpoint);
  const auto reader = make_device_reader(endpoint);
  drop(worker, 1);
  worker.drop({2, 2, 1, 1});
  reader->poll();
  EXPECT_EQ(reader->dropped().count, 2u);
  EXPECT_EQ(reader->dropped().given_up, 1u);
  send(worker, 3, {3});
  worker.drop({4, 4, 1, 1});
  reader->poll();
  for (const DroppedSteps& dropped : {reader->dropped(), worker.dropped()}) {
    EXPECT_EQ(dropped.count, 3u);
    EXPECT_EQ(dropped.given_up, 2u);
    EXPECT_EQ(dropped.last, Step(4));
  }
}

TEST_F(DropTest, SaysWhichOfBothItWas) {
  ChannelProducer worker(endpoint);
  const auto reader = make_device_reader(endpoint);
  for (Step step = 1; step <= 6; step += 2) {
    const bool given_up = step != 3;
    worker.drop({step, step, 1, given_up});
    reader->poll();
    send(worker, step + 1, {3});
    reader->poll();
    const std::string why = message_of<StepFailed>([&] { reader->wait_for(step, kPatience); });
    const std::string right =
        fmt::format("the worker dropped it: {}", given_up ? "it gave it up" : "its ring was full");
    EXPECT_TRUE(contains(why, right)) << why;
    EXPECT_FALSE(contains(why, given_up ? "ring was full" : "gave it up")) << why;
  }
  worker.drop({7, 7, 1, 1});  // it is not known which is which
  worker.drop({8, 8, 1});
  for (const Step step : {Step(7), Step(8)}) {
    const std::string why = message_of<StepFailed>([&] { reader->wait_for(step, kPatience); });
    EXPECT_TRUE(contains(why, "dropped it, among steps 7 to 8: of the 2 that")) << why;
    EXPECT_TRUE(contains(why, "gave up 1") && contains(why, "ring was full")) << why;
  }
}

TEST_F(DropTest, AStepIsDroppedAfterThoseThatAreOnTheirWay) {
  ChannelProducer worker(endpoint);
  const auto reader = make_device_reader(endpoint);
  send(worker, 1, {3});
  const Slots slots{4};
  test::write_record(worker.acquire(), endpoint.shape, 2, slots);
  drop(worker, 3);
  drop(worker, 4);
  EXPECT_EQ(reader->poll(), Step(1));
  worker.commit(test::describe(Descriptor::Kind::step, 2, 1));
  EXPECT_EQ(reader->poll(), Step(4));
  EXPECT_EQ(state(*reader, 4, {2, 2}), RowState::present);
  EXPECT_THROW(reader->wait_for(4, kPatience), StepFailed);
  EXPECT_EQ(reader->dropped().count, 2u);
}

TEST_F(DropTest, TheNextRecordTellsOfThoseBeforeIt) {
  ChannelProducer worker(endpoint);
  ChannelConsumer consumer(endpoint);
  const auto take = [&] {
    const auto* item = consumer.peek();
    EXPECT_NE(item, nullptr);
    const DropRun run = item->descriptor.dropped;
    consumer.release();
    return run;
  };
  send(worker, 1, {3});
  send(worker, 2, {3});
  drop(worker, 3);
  drop(worker, 5);
  EXPECT_EQ(consumer.dropped(), DropRun{}) << "records come first";
  EXPECT_EQ(take(), DropRun{});
  send(worker, 6, {3});
  drop(worker, 7);
  EXPECT_EQ(take(), DropRun{});
  EXPECT_EQ(consumer.dropped(), DropRun{}) << "the next record tells";
  EXPECT_EQ(take(), (DropRun{3, 5, 2}));
  EXPECT_EQ(consumer.dropped(), (DropRun{7, 7, 3}));
  drop(worker, 8);
  EXPECT_EQ(consumer.dropped(), (DropRun{7, 8, 4}));
  send(worker, 9, {3});
  EXPECT_EQ(take(), (DropRun{7, 8, 4}));
}

TEST_F(DropTest, WakesWhoWaitsForTheStep) {
  ChannelProducer worker(endpoint);
  const auto reader = make_device_reader(endpoint);
  std::thread later([&] {
    std::this_thread::sleep_for(Milliseconds(30));
    drop(worker, 1);
    std::this_thread::sleep_for(Milliseconds(30));
    drop(worker, 2);
  });
  EXPECT_THROW(reader->wait_for(2, kPatience), StepFailed);
  later.join();
}

TEST_F(DropTest, ANoteThatNoWorkerWritesIsNotBelieved) {
  ChannelProducer worker(endpoint);
  const auto reader = make_device_reader(endpoint);
  send(worker, 1, {3});
  send(worker, 2, {3});
  EXPECT_EQ(reader->poll(), Step(2));
  DropNote& note = Ring(worker.memory(), endpoint).control().drops;
  for (const DropRun& run : {DropRun{2, 3, 1}, DropRun{5, 4, 1}, DropRun{0, 4, 1}, DropRun{3, 3, 0},
                             DropRun{3, 3, 1, 2}}) {
    note.write({2, run});
    EXPECT_THROW(reader->poll(), MismatchError) << run.first << " to " << run.last;
  }
  note.write({1, {3, 3, 1}});
  EXPECT_EQ(reader->poll(), Step(2));
  EXPECT_EQ(state(*reader, 3, kAny), RowState::present);
}

TEST(DropNote, OfAWriterThatDiedInTheMiddleIsNone) {
  DropNote note;
  EXPECT_EQ(note.read()->run, DropRun{});
  note.write({2, {3, 4, 2}});
  EXPECT_EQ(note.read()->after, 2u);
  EXPECT_EQ(note.read()->run, (DropRun{3, 4, 2}));
  const std::uint64_t odd = 7;
  std::memcpy(static_cast<void*>(&note), &odd, sizeof odd);  // version_
  EXPECT_FALSE(note.read().has_value());
  note.write({5, {6, 6, 3}});
  EXPECT_EQ(note.read()->after, 5u);
}

TEST(StepOutcomes, SayWhichStepsWereDropped) {
  StepOutcomes outcomes;
  outcomes.dropped({10, 12, 3}, "test");
  outcomes.succeeded(15);
  outcomes.dropped({20, 20, 4}, "test");
  EXPECT_EQ(outcomes.last(), Step(20));
  EXPECT_NO_THROW(outcomes.require_success(15));
  EXPECT_THROW(outcomes.require_success(11), StepFailed);
  // The last run has more steps than were known.
  outcomes.dropped({20, 22, 6}, "test");
  EXPECT_EQ(outcomes.dropped().count, 6u);
  EXPECT_THROW(outcomes.require_success(22), StepFailed);
  EXPECT_THROW(outcomes.dropped({22, 23, 7}, "test"), MismatchError);
}

TEST(StepOutcomes, TakeForFailedWhatTheyHaveForgotten) {
  StepOutcomes outcomes;
  for (std::size_t i = 0; i < StepOutcomes::kRuns + 2; ++i) {
    outcomes.dropped({Step(1 + 3 * i), Step(1 + 3 * i), 1 + i}, "test");
  }
  for (const Step forgotten : {Step(1), Step(2), Step(4)}) {
    EXPECT_THROW(outcomes.require_success(forgotten), StepFailed) << forgotten;
  }
  EXPECT_NO_THROW(outcomes.require_success(5));
}

}  // namespace
}  // namespace moetap
