// A thread that takes steps in for a scheduler that blocks elsewhere (H36).
#include <moetap/error.h>
#include <moetap/poll_thread.h>
#include <moetap/read_transport.h>
#include <moetap/reader.h>

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ipc/internal/channel.h"
#include "ipc/internal/ring.h"
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

constexpr Milliseconds kPatience{test::kPatienceMs};

bool readable(int fd, int timeout_ms = test::kPatienceMs) {
  pollfd event{fd, POLLIN, 0};
  return ::poll(&event, 1, timeout_ms) == 1;
}
void clear(int fd) {
  std::uint64_t times = 0;
  EXPECT_EQ(::read(fd, &times, sizeof times), static_cast<ssize_t>(sizeof times));
}

class RingOfOne : public test::EndpointTest {
 protected:
  RingOfOne() { endpoint.ring_depth = 1, endpoint.timeout = kPatience; }
};

class PollThreadTest : public RingOfOne {
 protected:
  void send(Step step, const std::vector<Slot>& slots) {
    send_step(worker, endpoint.shape, step, slots);
  }
  RowState state(Reader& reader, Slot slot, StepWindow window) const {
    std::vector<std::byte> row(endpoint.shape.row_bytes());
    RowState state{};
    reader.read({&slot, 1}, {&window, 1}, row, {&state, 1});
    return state;
  }

  ChannelProducer worker{endpoint};
};

TEST_F(PollThreadTest, H36TakesStepsInWhileItsSchedulerDoesSomethingElse) {
  Reader reader(poll_in_thread(make_device_reader(endpoint)));
  for (Step step = 1; step <= 50; ++step) send(step, {Slot(step.value())});
  reader.wait_for(50, kPatience);
  for (Step step = 1; step <= 50; ++step) {
    EXPECT_EQ(state(reader, Slot(step.value()), {step, step}), RowState::present);
  }
  EXPECT_EQ(reader.poll(), Step(50));
  EXPECT_TRUE(reader.worker_alive());
  EXPECT_EQ(reader.dropped().count, 0u);
}

TEST_F(PollThreadTest, ItsDescriptorIsReadableOnceStepsCame) {
  int fd = -1;
  const Reader reader(poll_in_thread(make_device_reader(endpoint), {.readable = &fd}));
  ASSERT_GE(fd, 0);
  EXPECT_FALSE(readable(fd, 20));
  send(1, {1});
  EXPECT_TRUE(readable(fd));
  clear(fd);
  EXPECT_FALSE(readable(fd, 20));
  send(2, {1});
  send(3, {1});
  EXPECT_TRUE(readable(fd));
}

TEST_F(PollThreadTest, ItsDescriptorTellsThatTheWorkerDied) {
  endpoint.part = 1;
  ChildProcess other([&] {
    const ChannelProducer mine(endpoint);
    pause();
  });
  int fd = -1;
  Reader reader(poll_in_thread(make_device_reader(endpoint), {.readable = &fd}));
  EXPECT_FALSE(readable(fd, 20));
  other.kill();
  EXPECT_TRUE(readable(fd));
  EXPECT_FALSE(reader.worker_alive());
}

TEST_F(PollThreadTest, LentRowsStayAsTheyAre) {
  Reader reader(poll_in_thread(make_device_reader(endpoint)));
  send(1, {3});
  reader.wait_for(1, kPatience);
  const Slot slot = 3;
  const StepWindow window{1, 1};
  const std::byte* row = nullptr;
  RowState state{};
  std::optional<Lease> lease =
      reader.lend({&slot, 1}, {&window, 1}, {&row, 1}, {&state, 1}, "test");
  ASSERT_TRUE(lease.has_value());
  send(2, {3});
  std::this_thread::sleep_for(Milliseconds(20));
  EXPECT_EQ(reader.poll(), Step(1));
  lease.reset();
  reader.wait_for(2, kPatience);
}

TEST_F(PollThreadTest, WhatItMeetsWithIsThrownByEveryCall) {
  int fd = -1;
  Reader reader(poll_in_thread(make_device_reader(endpoint), {.readable = &fd}));
  Ring(worker.memory(), endpoint).control().committed.store(7);
  EXPECT_TRUE(readable(fd));
  for (int i = 0; i < 2; ++i) {
    const std::string text = message_of<MismatchError>([&] { reader.poll(); });
    EXPECT_TRUE(contains(text, "7 records wait")) << text;
    EXPECT_THROW(state(reader, 3, {}), MismatchError);
  }
}

TEST_F(PollThreadTest, AForkedChildMayEndButNotUseIt) {
  auto reader = std::make_unique<Reader>(poll_in_thread(make_device_reader(endpoint)));
  for (int i = 0; i < 20; ++i) {  // the thread sleeps, or is at work
    ChildProcess child([&] {
      EXPECT_THROW(reader->poll(), StateError);
      reader.reset();
    });
    EXPECT_EQ(child.join(), 0);
  }
  send(1, {3});
  reader->wait_for(1, kPatience);
}

TEST_F(PollThreadTest, RequestsAreTakenFromItToo) {
  RequestReader reader(poll_in_thread(make_request_reader(endpoint)));
  for (Step step = 1; step <= 20; ++step) {
    (void)worker.acquire();
    worker.commit({.kind = Descriptor::Kind::step_done, .step = step});
  }
  const auto bytes = worker.acquire();
  std::ranges::fill(bytes.first(1), std::byte{0});  // present
  std::ranges::fill(bytes.subspan(64, endpoint.shape.row_bytes()), std::byte{5});
  worker.commit({.kind = Descriptor::Kind::request, .num_tokens = 1, .request = 7, .position = 0});
  (void)worker.acquire();
  worker.commit({.kind = Descriptor::Kind::request_end, .num_tokens = 1, .request = 7});
  const Routes routes = reader.take(7, {0, 1}, kPatience);
  EXPECT_TRUE(routes.all_present());
  EXPECT_EQ(reader.poll(), Step(20));
}

TEST_F(PollThreadTest, RefusesWhatCannotWork) {
  EXPECT_THROW(poll_in_thread(std::unique_ptr<SlotReadTransport>()), ArgumentError);
  for (const int every : {0, -1, 1001}) {
    EXPECT_THROW(poll_in_thread(make_device_reader(endpoint), {.every = Milliseconds(every)}),
                 ArgumentError)
        << every;
  }
}

}  // namespace
}  // namespace moetap
