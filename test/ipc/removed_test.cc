// What is removed, or replaced by another file, while living processes use it (H38).
#include <moetap/error.h>
#include <moetap/read_transport.h>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "ipc/internal/channel.h"
#include "ipc/internal/names.h"
#include "ipc/internal/segment.h"
#include "ipc/internal/shm_writer.h"
#include "ipc/table/wire_lock.h"
#include "test/ipc/child_process.h"
#include "test/ipc/message_of.h"
#include "test/ipc/shm_test.h"
#include "test/ipc/step_records.h"

namespace moetap {
namespace {

namespace fs = std::filesystem;
using test::ChildProcess;
using test::contains;
using test::kPatience;
using test::message_of;
using test::rows_of;
using test::Signal;
using test::state_of;
using Slots = std::vector<Slot>;

enum class How { removed, replaced, moved };

class Removed : public test::ShmTest, public testing::WithParamInterface<How> {
 protected:
  void remove(const fs::path& file, std::size_t bytes = 4096) const {
    ASSERT_TRUE(fs::exists(file)) << file;
    if (GetParam() == How::removed) {
      fs::remove(file);
    } else if (GetParam() == How::moved) {
      fs::rename(file, file.string() + "_moved");
    } else {
      const fs::path beside = file.string() + "_new";
      const int fd = open(beside.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
      ASSERT_EQ(ftruncate(fd, static_cast<off_t>(bytes)), 0);
      close(fd);
      fs::rename(beside, file);
    }
  }
  void remove_memory(const std::string& name) const { remove("/dev/shm" + name); }

  void publish(ShmWriter& writer, Step step, const Slots& slots) const {
    writer.publish(step, unmarked(slots), rows_of(endpoint.shape, step, slots));
  }
  static void expect_told(const std::string& text, const std::string& name, pid_t owner) {
    EXPECT_TRUE(contains(text, name + " was removed")) << text;
    EXPECT_TRUE(contains(text, "process " + std::to_string(owner) + ", lives")) << text;
    EXPECT_TRUE(contains(text, "restart both ends")) << text;
  }
  Signal published;
  Signal go;
};

INSTANTIATE_TEST_SUITE_P(Each, Removed, testing::Values(How::removed, How::replaced, How::moved),
                         [](const auto& info) {
                           return std::string(info.param == How::removed    ? "Removed"
                                              : info.param == How::replaced ? "Replaced"
                                                                            : "Moved");
                         });

// Young ones are looked at in another way: the times of their changes may be the same.
TEST_P(Removed, H38IsNoticedAtOnceHoweverOldTheFileIs) {
  for (const int age : {0, 100'000}) {
    SCOPED_TRACE(age);
    const Segment segment = Segment::create("/moetap_" + endpoint.instance + "_aged_0", 4096);
    const Segment opened = Segment::open(segment.name());
    EXPECT_TRUE(segment.has_name() && opened.has_name());
    usleep(static_cast<useconds_t>(age));
    EXPECT_TRUE(segment.has_name() && opened.has_name());
    EXPECT_TRUE(segment.has_name() && opened.has_name());
    remove_memory(segment.name());
    EXPECT_FALSE(segment.has_name() || opened.has_name());
    fs::remove("/dev/shm" + segment.name());
    fs::remove("/dev/shm" + segment.name() + "_moved");
  }
}

TEST_P(Removed, H38MemoryOfTheNativeLayoutIsAnErrorAtBothEnds) {
  const std::string name = buffer_name(endpoint);
  ChildProcess worker([&] {
    ShmWriter writer(endpoint);
    usleep(100'000);
    publish(writer, 1, {1});
    published.raise();
    go.wait();
    expect_told(message_of<MismatchError>([&] { publish(writer, 2, {1}); }), name, getpid());
    EXPECT_NO_THROW(writer.fail(2, unmarked(Slots{1}), "its memory was removed"));
    published.raise();
    go.wait();
  });
  published.wait();
  const auto reader = make_shm_reader(endpoint);
  reader->wait_for(1, kPatience);
  EXPECT_EQ(state_of(*reader, 1), RowState::present);
  EXPECT_EQ(reader->poll(), Step(1));

  remove_memory(name);
  go.raise();
  published.wait();
  const auto expect = [&](auto&& call) {
    expect_told(message_of<MismatchError>(call), name, worker.pid());
  };
  std::vector<Step> stamps(1);
  expect([&] { state_of(*reader, 1); });
  expect([&] { reader->stamps(Slots{1}, stamps); });
  expect([&] { reader->put(3, Slots{1}, rows_of(endpoint.shape, 3, Slots{1}), {}); });
  expect([&] { (void)reader->worker_alive(); });
  expect([&] { reader->wait_for(3, kPatience); });
  expect([&] {
    for (int waited = 0; waited < test::kPatienceMs; ++waited, usleep(1000)) reader->poll();
  });
  go.raise();
  EXPECT_EQ(worker.join(), 0);
}

TEST_P(Removed, H38ARingIsAnErrorAtBothEnds) {
  const std::string name = ring_name(endpoint);
  ChildProcess worker([&] {
    ChannelProducer producer(endpoint);
    test::send_step(producer, endpoint.shape, 1, Slots{1});
    published.raise();
    go.wait();
    usleep(30'000);  // it looks every 20 ms
    expect_told(message_of<MismatchError>([&] { (void)producer.acquire(); }), name, getpid());
    published.raise();
    go.wait();
  });
  published.wait();
  const auto reader = make_device_reader(endpoint);
  reader->wait_for(1, kPatience);
  remove_memory(name);
  go.raise();
  published.wait();
  const auto expect = [&](auto&& call) {
    expect_told(message_of<MismatchError>(call), name, worker.pid());
  };
  expect([&] { reader->wait_for(2, kPatience); });
  expect([&] { (void)reader->worker_alive(); });
  expect([&] {
    for (int waited = 0; waited < test::kPatienceMs; ++waited, usleep(1000)) reader->poll();
  });
  EXPECT_EQ(state_of(*reader, 1), RowState::present);  // which it has in its own memory
  go.raise();
  EXPECT_EQ(worker.join(), 0);
}

TEST_P(Removed, H38AFullRingIsAnErrorForAWorkerThatDropsItsSteps) {
  endpoint.ring_depth = 1;
  ChannelProducer producer(endpoint);
  test::send_step(producer, endpoint.shape, 1, Slots{1});
  EXPECT_FALSE(producer.has_room());
  remove_memory(ring_name(endpoint));
  usleep(30'000);
  EXPECT_THROW((void)producer.has_room(), MismatchError);
}

TEST_P(Removed, H38ARingOfRequestsIsAnErrorAtItsReader) {
  ChildProcess worker([&] {
    ChannelProducer producer(endpoint);
    published.raise();
    go.wait();
  });
  published.wait();
  const auto reader = make_request_reader(endpoint);
  remove_memory(ring_name(endpoint));
  const auto expect = [&](auto&& call) {
    expect_told(message_of<MismatchError>(call), ring_name(endpoint), worker.pid());
  };
  expect([&] { reader->take(1, {0, 0}, {}, {}, kPatience); });
  expect([&] {
    for (int waited = 0; waited < test::kPatienceMs; ++waited, usleep(1000)) reader->poll();
  });
  go.raise();
  EXPECT_EQ(worker.join(), 0);
}

class RemovedWire : public Removed {
 protected:
  RemovedWire() { endpoint.layout = ShmLayout::wire; }

  std::string name() const { return buffer_name(endpoint); }
  fs::path lock_file() const { return wire_lock_path(endpoint); }
  void expect_row(SlotReadTransport& reader, Step step, Slot slot) const {
    const auto got = test::read(reader, Slots{slot});
    EXPECT_EQ(got.states[0], RowState::unverified);
    EXPECT_EQ(got.rows, rows_of(endpoint.shape, step, Slots{slot}));
  }
};

INSTANTIATE_TEST_SUITE_P(Each, RemovedWire, testing::Values(How::removed, How::moved),
                         [](const auto& info) {
                           return std::string(info.param == How::removed ? "Removed" : "Moved");
                         });

TEST_P(RemovedWire, H38AWorkerMakesItsMemoryAgainAndReadersFollow) {
  ChildProcess worker([&] {
    ShmWriter writer(endpoint);
    publish(writer, 1, {1, 2});
    for (const Step step : {Step{2}, Step{3}}) {
      published.raise();
      go.wait();
      publish(writer, step, {2});
    }
    published.raise();
    go.wait();
  });
  published.wait();
  const auto reader = make_shm_reader(endpoint);
  expect_row(*reader, 1, 1);
  for (const Step step : {Step{2}, Step{3}}) {
    remove_memory(name());
    for (const std::string& text :
         {message_of<MismatchError>([&] { state_of(*reader, 1); }), message_of<MismatchError>([&] {
            reader->put(9, Slots{1}, rows_of(endpoint.shape, 9, Slots{1}), {});
          })}) {
      EXPECT_TRUE(contains(text, name() + " was removed")) << text;
    }
    go.raise();
    published.wait();
    expect_row(*reader, step, 2);
    EXPECT_EQ(state_of(*reader, 1), RowState::missing);  // it was in the old one
    reader->put(9, Slots{3}, rows_of(endpoint.shape, 9, Slots{3}), {});
    expect_row(*make_shm_reader(endpoint), 9, 3);
  }
  go.raise();
  EXPECT_EQ(worker.join(), 0);
  EXPECT_FALSE(fs::exists("/dev/shm" + name()));  // the new one went with the worker
}

TEST_P(RemovedWire, H38AFailedStepIsNotedInTheNewMemory) {
  ShmWriter writer(endpoint);
  remove_memory(name());
  writer.fail(1, unmarked(Slots{2}), "why");
  publish(writer, 2, {1});
  expect_row(*make_shm_reader(endpoint), 2, 1);
}

TEST_P(RemovedWire, H38ALockFileIsMadeAgainAndExcludesBothEnds) {
  endpoint.timeout = Milliseconds(100);
  WireLock lock(endpoint);
  ChildProcess worker([&] {
    ShmWriter writer(endpoint);
    publish(writer, 1, {1});
    published.raise();
    go.wait();
    publish(writer, 2, {1});
    published.raise();
    go.wait();
    EXPECT_THROW(publish(writer, 3, {1}), TimeoutError);
    published.raise();
    go.wait();
    publish(writer, 3, {1});
    published.raise();
    go.wait();
  });
  published.wait();
  const auto reader = make_shm_reader(endpoint);
  lock.lock();
  EXPECT_THROW(state_of(*reader, 1), TimeoutError);
  remove(lock_file());
  EXPECT_FALSE(lock.is_current());
  go.raise();
  published.wait();
  expect_row(*reader, 2, 1);  // neither end waits for the lock of a file that is gone
  lock.unlock();
  {
    const auto held = lock.hold(kPatience);
    EXPECT_TRUE(lock.is_current());
    EXPECT_TRUE(fs::exists(lock_file()));
    EXPECT_THROW(state_of(*reader, 1), TimeoutError);
    EXPECT_THROW(reader->put(9, Slots{1}, rows_of(endpoint.shape, 9, Slots{1}), {}), TimeoutError);
    go.raise();
    published.wait();
  }
  go.raise();
  published.wait();
  expect_row(*reader, 3, 1);
  go.raise();
  EXPECT_EQ(worker.join(), 0);
}

TEST_P(RemovedWire, H38ALockThatIsReplacedWhileItIsWaitedForIsNotEnough) {
  ChildProcess other([&] {
    WireLock lock(endpoint);
    lock.lock();
    published.raise();
    usleep(20'000);
    remove(lock_file());
    lock.unlock();
  });
  published.wait();
  WireLock lock(endpoint);
  const auto held = lock.hold(kPatience);
  EXPECT_TRUE(lock.is_current());
  EXPECT_FALSE(WireLock(endpoint).try_lock());
  EXPECT_EQ(other.join(), 0);
}

// Ends as it should, or is killed. The next worker makes a buffer of its own, or takes the old one.
class RestartedWire : public test::ShmTest, public testing::WithParamInterface<bool> {
 protected:
  RestartedWire() { endpoint.layout = ShmLayout::wire; }
};

INSTANTIATE_TEST_SUITE_P(Each, RestartedWire, testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "Killed" : "Ended");
});

TEST_P(RestartedWire, H38AReaderFollowsToTheNextWorkersMemoryWithoutTheRowsOfTheLast) {
  Signal published;
  Signal go;
  const auto run = [&](Step step, Slot slot) {
    return [&, step, slot] {
      ShmWriter writer(endpoint);
      writer.publish(step, unmarked(Slots{slot}), rows_of(endpoint.shape, step, Slots{slot}));
      published.raise();
      go.wait();
    };
  };
  const auto end = [&](ChildProcess& worker) {
    if (GetParam()) return worker.kill();
    go.raise();
    EXPECT_EQ(worker.join(), 0);
  };
  ChildProcess first(run(1, 1));
  published.wait();
  const auto reader = make_shm_reader(endpoint);
  EXPECT_EQ(state_of(*reader, 1), RowState::unverified);
  end(first);
  ChildProcess second(run(2, 2));
  published.wait();
  const auto got = test::read(*reader, Slots{1, 2});
  EXPECT_EQ(got.states, (std::vector{RowState::missing, RowState::unverified}));
  EXPECT_EQ(std::vector(got.rows.begin() + std::ssize(got.rows) / 2, got.rows.end()),
            rows_of(endpoint.shape, 2, Slots{2}));
  end(second);
}

class RestartedWireOfAnotherSize : public test::ShmTest {};

TEST_F(RestartedWireOfAnotherSize, H38IsRefusedByAReader) {
  endpoint.layout = ShmLayout::wire;
  std::optional<ShmWriter> writer(std::in_place, endpoint);
  const auto reader = make_shm_reader(endpoint);
  writer.reset();
  Endpoint other = endpoint;
  other.num_slots = 32;
  writer.emplace(other);
  const std::string text = message_of<MismatchError>([&] { state_of(*reader, 1); });
  EXPECT_TRUE(contains(text, "give both ends the same model")) << text;
}

}  // namespace
}  // namespace moetap
