// A reader of several ranks, each a process of its own (H35).
#include <moetap/error.h>
#include <moetap/read_transport.h>

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
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
using test::message_of;
using test::send_step;
using test::Signal;
using Clock = std::chrono::steady_clock;

constexpr Milliseconds kPatience{test::kPatienceMs};

// Two ranks that publish a part of each step's tokens, or two stages of a pipeline.
class JoinedReaderTest : public test::EndpointTest {
 protected:
  static Topology parts() {
    return {.tp_size = 2, .sp_size = 2, .parts = SequenceParts::published};
  }
  static Topology stages() { return {.pp_size = 2, .stage_layers = {{0, 1}, {2}}}; }

  Endpoint member(const Topology& topology, int number) const {
    const auto endpoints = endpoints_of(endpoint, topology);
    const auto i = static_cast<std::size_t>(number);
    return endpoints.size() == 1 ? endpoints[0][i] : endpoints[i][0];
  }
  // The slot of the step's one token of this rank.
  static Slot slot_of(Step step, int rank) { return Slot(2 * step.value()) + rank; }
  static void publish(ChannelProducer& worker, const Endpoint& own, Step step, int rank) {
    const std::vector<Slot> slots{slot_of(step, rank)};
    send_step(worker, own.shape, step, slots);
  }
};

// As ranks that a collective in each step holds together.
TEST_F(JoinedReaderTest, H35RanksInLockstepWithRingsOfOneStepAreReadInTurn) {
  constexpr Step kSteps = 20;
  endpoint.ring_depth = 1;
  Signal turns[2];
  Signal read;
  const auto run = [&](int rank) {
    const Endpoint own = member(parts(), rank);
    ChannelProducer worker(own);
    for (Step step = 1; step <= kSteps; ++step) {
      turns[rank].raise();
      turns[1 - rank].wait();
      publish(worker, own, step, rank);
    }
    read.wait();
  };
  ChildProcess first([&] { run(0); });
  ChildProcess second([&] { run(1); });
  const auto reader = make_joined_reader(endpoint, parts(), make_device_reader);
  reader->wait_for(kSteps, kPatience);
  for (Step step = 1; step <= kSteps; ++step) {
    const std::vector<Slot> slots{slot_of(step, 0), slot_of(step, 1)};
    const StepWindow window{step, step};
    std::vector<std::byte> rows(2 * endpoint.shape.row_bytes());
    std::vector<RowState> states(2);
    reader->read(slots, {&window, 1}, rows, states);
    EXPECT_EQ(states, (std::vector{RowState::present, RowState::present})) << step;
  }
  read.raise();
  read.raise();
  EXPECT_EQ(first.join(), 0);
  EXPECT_EQ(second.join(), 0);
}

TEST_F(JoinedReaderTest, H35ALateRankIsNamedWithTheTimeThatWasWaited) {
  const Endpoint own = member(parts(), 0);
  ChannelProducer first(own);
  const ChannelProducer second(member(parts(), 1));
  const auto reader = make_joined_reader(endpoint, parts(), make_device_reader);
  publish(first, own, 1, 0);
  const std::string text = message_of<TimeoutError>([&] { reader->wait_for(1, Milliseconds(30)); });
  EXPECT_TRUE(contains(text, "for step 1 of all 2 ranks, of part 1")) << text;
  EXPECT_TRUE(contains(text, "the last step that came is 0, and the worker lives")) << text;
  EXPECT_FALSE(contains(text, " 0 ms")) << text;
}

// The start of one rank may depend on steps of another, as a warm-up's do.
TEST_F(JoinedReaderTest, H35ThoseThatAreThereAreReadWhileOthersAreWaitedFor) {
  endpoint.ring_depth = 1;
  Signal come;
  Signal read;
  ChildProcess early([&] {
    const Endpoint own = member(parts(), 0);
    ChannelProducer worker(own);
    for (Step step = 1; step <= 5; ++step) publish(worker, own, step, 0);
    come.raise();
    read.wait();
  });
  ChildProcess late([&] {
    come.wait();
    const Endpoint own = member(parts(), 1);
    ChannelProducer worker(own);
    publish(worker, own, 5, 1);
    read.wait();
  });
  const auto reader = make_joined_reader(endpoint, parts(), make_device_reader);
  reader->wait_for(5, kPatience);
  EXPECT_TRUE(reader->worker_alive());
  read.raise();
  read.raise();
  EXPECT_EQ(early.join(), 0);
  EXPECT_EQ(late.join(), 0);
}

TEST_F(JoinedReaderTest, H35AttachesToAllWithinOneTimeout) {
  endpoint.timeout = Milliseconds(2000);
  Signal read;
  ChildProcess first([&] {
    std::this_thread::sleep_for(Milliseconds(1500));
    const ChannelProducer worker(member(parts(), 0));
    read.wait();
  });
  const auto start = Clock::now();
  const std::string text = message_of<TimeoutError>(
      [&] { (void)make_joined_reader(endpoint, parts(), make_device_reader); });
  EXPECT_LT(Clock::now() - start, Milliseconds(3300)) << "one after the other";
  EXPECT_TRUE(contains(text, "_p1_ring")) << text;
  read.raise();
  EXPECT_EQ(first.join(), 0);
}

TEST_F(JoinedReaderTest, H35ADeadRankIsNamedAtOnce) {
  Signal read;
  ChildProcess first([&] {
    const Endpoint own = member(parts(), 0);
    ChannelProducer worker(own);
    publish(worker, own, 1, 0);
    read.wait();
  });
  ChildProcess second([&] {
    const ChannelProducer worker(member(parts(), 1));
    read.wait();
  });
  const auto reader = make_joined_reader(endpoint, parts(), make_device_reader);
  second.kill();
  const std::string text =
      message_of<TimeoutError>([&] { reader->wait_for(1, std::chrono::hours(1)); });
  EXPECT_TRUE(contains(text, "part 1")) << text;
  EXPECT_TRUE(contains(text, "died")) << text;
  EXPECT_TRUE(contains(text, "start the worker")) << text;
  EXPECT_FALSE(contains(text, "3600000 ms")) << text;  // which was not waited
  EXPECT_FALSE(reader->worker_alive());
  read.raise();
  EXPECT_EQ(first.join(), 0);
}

TEST_F(JoinedReaderTest, H36NoStageHasAnOlderRowInAWindowWithADroppedStep) {
  endpoint.ring_depth = 2;
  const std::vector<Slot> slots{3};
  Endpoint own[2] = {member(stages(), 0), member(stages(), 1)};
  ChannelProducer first(own[0]);
  ChannelProducer second(own[1]);
  const auto reader = make_joined_reader(endpoint, stages(), make_device_reader);
  send_step(first, own[0].shape, 1, slots);
  send_step(second, own[1].shape, 1, slots);
  first.drop({2, 2, 1});
  second.drop({2, 2, 1});
  EXPECT_THROW(reader->wait_for(2, kPatience), StepFailed);
  EXPECT_EQ(reader->dropped().count, 2u);
  EXPECT_EQ(reader->dropped().last, Step(2));
  std::vector<std::byte> row(endpoint.shape.row_bytes());
  RowState state{};
  const auto read = [&](StepWindow window) {
    reader->read(slots, {&window, 1}, row, {&state, 1});
    return state;
  };
  EXPECT_EQ(read({1, 1}), RowState::present);
  EXPECT_EQ(read({1, 2}), RowState::missing);
  EXPECT_EQ(read({}), RowState::missing);
}

TEST_F(JoinedReaderTest, H36ARingHasRoomForEveryStepThatAPipelineHasInFlight) {
  endpoint.ring_depth = 1;
  const Endpoint own = member(stages(), 0);
  for (const std::string& text :
       {message_of<ArgumentError>([&] { const ChannelProducer worker(own); }),
        message_of<ArgumentError>([&] { (void)make_device_reader(own); })}) {
    EXPECT_TRUE(contains(text, "ring_depth is 1, but 2 steps are in flight")) << text;
  }
  endpoint.ring_depth = 3;
  endpoint.steps_in_flight = 4;  // an asynchronous scheduler's
  EXPECT_THROW(const ChannelProducer worker(member(stages(), 0)), ArgumentError);
  endpoint.ring_depth = 4;
  EXPECT_NO_THROW(const ChannelProducer worker(member(stages(), 0)));
  endpoint.steps_in_flight = 0;
  EXPECT_THROW(endpoint.validate(), ArgumentError);
}

}  // namespace
}  // namespace moetap
