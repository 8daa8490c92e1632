// A worker that waits for a full ring is told which lease keeps the scheduler from reading (H25).
#include <moetap/error.h>
#include <moetap/read_transport.h>

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>
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
using test::message_of;
using test::send_step;
using test::Signal;

constexpr Milliseconds kPatience{test::kPatienceMs};

// A worker in this process and schedulers in others.
class FullRingTest : public test::EndpointTest {
 protected:
  FullRingTest() { endpoint.ring_depth = 2; }

  // A scheduler's: it has the worker's first step.
  std::unique_ptr<SlotReadTransport> make_reader() const {
    auto reader = make_device_reader(endpoint);
    reader->wait_for(1, kPatience);
    return reader;
  }
  // A scheduler's and the worker's: one has done its part, and waits for the other's.
  void done() {
    ready.raise();
    go.wait();
  }
  void go_on() {
    go.raise();
    ready.wait();
  }

  static Lease lend(SlotReadTransport& reader, const std::string& holder) {
    const std::vector<Slot> slots{3};
    const StepWindow any;
    std::vector<const std::byte*> rows(1);
    std::vector<RowState> states(1);
    return *reader.lend(slots, {&any, 1}, rows, states, holder);
  }

  ChannelProducer make_worker() const {
    Endpoint impatient = endpoint;
    impatient.timeout = Milliseconds(20);
    return ChannelProducer(impatient);
  }
  // Once a scheduler is done with step 1, the ring is full.
  void fill(ChannelProducer& worker) {
    const std::vector<Slot> slots{3};
    send_step(worker, endpoint.shape, 1, slots);
    ready.wait();
    send_step(worker, endpoint.shape, 2, slots);
    send_step(worker, endpoint.shape, 3, slots);
  }
  static std::string full(ChannelProducer& worker) {
    return message_of<TimeoutError>([&] { (void)worker.acquire(); });
  }

  Signal ready, go;
};

TEST_F(FullRingTest, NamesTheLeaseThatKeepsItFullUntilItEnds) {
  ChildProcess scheduler([this] {
    const auto reader = make_reader();
    std::optional<Lease> first = lend(*reader, "request 7");
    std::optional<Lease> second = lend(*reader, "request 8");
    done();
    first.reset();
    done();
    std::thread other([&] { second.reset(); });  // as a server's thread that sends the answer
    other.join();
    done();
    reader->wait_for(3, kPatience);
  });
  ChannelProducer worker = make_worker();
  fill(worker);
  std::string text = full(worker);
  EXPECT_TRUE(contains(text, "2 leases are out, the oldest is held by request 7 for ")) << text;
  EXPECT_TRUE(contains(text, "process " + std::to_string(scheduler.pid()))) << text;
  EXPECT_TRUE(contains(text, "detach()")) << text;
  go_on();
  text = full(worker);
  EXPECT_TRUE(contains(text, "a lease is out, held by request 8 for ")) << text;
  go_on();
  text = full(worker);  // nothing is read, but not for a lease
  EXPECT_FALSE(contains(text, "lease")) << text;
  EXPECT_TRUE(contains(text, "process " + std::to_string(scheduler.pid()))) << text;
  go.raise();
  EXPECT_EQ(scheduler.join(), 0);
}

TEST_F(FullRingTest, ALeaseThatOutlivesItsReaderIsNoneAndEndsHarmlessly) {
  ChildProcess scheduler([this] {
    auto reader = make_reader();
    std::optional<Lease> lease = lend(*reader, "request 7");
    reader.reset();
    done();
    lease.reset();  // the ring is not mapped any more
    const auto next = make_device_reader(endpoint);
    done();
    next->wait_for(3, kPatience);
  });
  ChannelProducer worker = make_worker();
  fill(worker);
  std::string text = full(worker);
  EXPECT_TRUE(contains(text, "reader is not there")) << text;
  EXPECT_FALSE(contains(text, "lease")) << text;
  go_on();
  text = full(worker);
  EXPECT_FALSE(contains(text, "lease")) << text;
  go.raise();
  EXPECT_EQ(scheduler.join(), 0);
}

TEST_F(FullRingTest, TheLeasesOfAKilledReaderAreNotItsSuccessors) {
  ChildProcess killed([this] {
    const auto reader = make_reader();
    const Lease lease = lend(*reader, "request 7");
    done();  // for ever
  });
  ChildProcess successor([this] {
    go.wait();
    const auto reader = make_device_reader(endpoint);
    done();
  });
  ChannelProducer worker = make_worker();
  fill(worker);
  killed.kill();
  std::string text = full(worker);
  EXPECT_TRUE(contains(text, "reader is not there")) << text;
  EXPECT_FALSE(contains(text, "request 7")) << text;
  go_on();
  text = full(worker);
  EXPECT_TRUE(contains(text, "process " + std::to_string(successor.pid()))) << text;
  EXPECT_FALSE(contains(text, "request 7")) << text;
  go.raise();
  EXPECT_EQ(successor.join(), 0);
}

}  // namespace
}  // namespace moetap
