// The order in which a device runs work, on every kind of device.
#include <moetap/device.h>
#include <moetap/error.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <vector>

#include "test/gpu/device_test.h"
#include "test/gpu/test_kernels.h"

namespace moetap::test {
namespace {

class DeviceOrder : public DeviceTest {
 protected:
  std::unique_ptr<Stream> a = device->make_stream();
  std::unique_ptr<Stream> b = device->make_stream();
  std::unique_ptr<Event> event = device->make_event();
  Buffer memory = device->allocate_pinned(4096);
  Buffer device_memory = device->allocate(sizeof(std::int64_t));
  std::int64_t* const x = memory.as<std::int64_t>();
  std::int64_t* const y = x + 8;
  std::int64_t* const on_device = device_memory.as<std::int64_t>();

  void SetUp() override {
    a->fill(memory.data(), 0, memory.size());
    a->synchronize();
  }
};

std::int64_t digits(std::int64_t from, std::int64_t to) {
  std::uint64_t value = 0;
  for (std::int64_t i = from; i < to; ++i) value = value * 31 + static_cast<std::uint64_t>(i);
  return static_cast<std::int64_t>(value);
}

TEST_P(DeviceOrder, RunsAStreamsWorkInOrder) {
  for (std::int64_t i = 0; i < 12; ++i) a->launch(Append{x, i}, 1);
  a->copy(on_device, x, sizeof *x);
  a->fill(x, 0xFF, sizeof *x);
  a->copy(y, on_device, sizeof *x);
  a->synchronize();
  EXPECT_EQ(*y, digits(0, 12));
  EXPECT_EQ(*x, -1);
}

TEST_P(DeviceOrder, OrdersStreamsByEvents) {
  for (std::int64_t i = 0; i < 12; i += 2) {
    a->launch(Append{x, i}, 1);
    a->record(*event);
    b->wait(*event);
    b->launch(Append{x, i + 1}, 1);
    b->record(*event);
    a->wait(*event);
  }
  a->synchronize();
  EXPECT_EQ(*x, digits(0, 12));
}

TEST_P(DeviceOrder, AWaitForAnEventThatWasNeverRecordedIsNoWait) {
  Delay delay(*device, *a);
  a->launch(Set{x, 1}, 1);
  b->wait(*event);
  a->record(*event);  // after the wait, so not what it waits for
  b->launch(Set{y, 1}, 1);
  b->synchronize();
  EXPECT_EQ(*y, 1);
  EXPECT_EQ(*x, runs_at_once(*device) ? 1 : 0);
}

TEST_P(DeviceOrder, AnEventThatWasNeverRecordedIsDone) {
  EXPECT_TRUE(event->done());
  event->synchronize();
}

TEST_P(DeviceOrder, AWaitIsForTheRecordBeforeItAndNoLaterOne) {
  a->launch(Set{x, 1}, 1);
  a->record(*event);
  b->wait(*event);
  Delay delay(*device, *a);
  a->launch(Set{x, 2}, 1);
  a->record(*event);
  b->launch(Assign{y, x}, 1);
  b->synchronize();
  EXPECT_EQ(*y, runs_at_once(*device) ? 2 : 1);
}

TEST_P(DeviceOrder, AWaitIsNotEndedByALaterRecordOnAFasterStream) {
  auto c = device->make_stream();
  Delay delay(*device, *a);
  a->launch(Set{x, 1}, 1);
  a->record(*event);
  b->wait(*event);
  b->launch(Assign{y, x}, 1);
  c->record(*event);
  event->synchronize();
  EXPECT_TRUE(event->done());
  delay.release();
  b->synchronize();
  EXPECT_EQ(*y, 1);
}

TEST_P(DeviceOrder, AWaitAfterASecondRecordIsForTheSecond) {
  a->record(*event);
  event->synchronize();
  Delay delay(*device, *a);
  a->launch(Set{x, 1}, 1);
  a->record(*event);
  b->wait(*event);
  b->launch(Assign{y, x}, 1);
  delay.release();
  b->synchronize();
  EXPECT_EQ(*y, 1);
}

TEST_P(DeviceOrder, AnEventsSynchronizeDoesNotWaitForLaterWork) {
  a->launch(Set{x, 1}, 1);
  a->record(*event);
  Delay delay(*device, *a);
  a->launch(Set{x, 2}, 1);
  event->synchronize();
  EXPECT_EQ(*x, runs_at_once(*device) ? 2 : 1);
}

TEST_P(DeviceOrder, PollingSeesTheEnd) {
  for (std::int64_t i = 0; i < 5; ++i) a->launch(Append{x, i}, 1);
  a->record(*event);
  while (!event->done()) std::this_thread::yield();
  EXPECT_EQ(*x, digits(0, 5));
  a->launch(Append{x, 5}, 1);
  while (!a->idle()) std::this_thread::yield();
  EXPECT_EQ(*x, digits(0, 6));
}

TEST_P(DeviceOrder, IsNotIdleOrDoneBeforeItsWorkIs) {
  Delay delay(*device, *a);
  a->launch(Set{x, 1}, 1);
  a->record(*event);
  b->wait(*event);
  // A poll of a seeded device runs work, held work too when there is no other.
  EXPECT_TRUE(!event->done() || *x == 1);
  EXPECT_TRUE(!b->idle() || *x == 1);
  delay.release();
  b->synchronize();
  EXPECT_TRUE(b->idle());
  EXPECT_TRUE(event->done());
}

TEST_P(DeviceOrder, CallsBackInOrderWhenTheWorkBeforeIsDone) {
  struct Seen {
    const std::int64_t* value;
    std::vector<std::int64_t> values;
  } seen{x, {}};
  for (std::int64_t i = 1; i <= 5; ++i) {
    a->launch(Set{x, i}, 1);
    a->call(
        [](void* argument) {
          auto* into = static_cast<Seen*>(argument);
          into->values.push_back(*into->value);
        },
        &seen);
  }
  a->synchronize();
  EXPECT_EQ(seen.values, (std::vector<std::int64_t>{1, 2, 3, 4, 5}));
}

TEST_P(DeviceOrder, ReadsACopysSourceWhenItRuns) {
  Delay delay(*device, *a);
  *x = 1;
  a->copy(on_device, x, sizeof *x);
  *x = 2;  // a mistake of a caller's that must show, as it does on a GPU
  delay.release();
  a->copy(y, on_device, sizeof *x);
  a->synchronize();
  EXPECT_EQ(*y, runs_at_once(*device) ? 1 : 2);
}

TEST_P(DeviceOrder, CopiesAKernelsArgumentsWhenItIsLaunched) {
  Delay delay(*device, *a);
  Set kernel{x, 1};
  a->launch(kernel, 1);
  kernel.to = 2;
  delay.release();
  a->synchronize();
  EXPECT_EQ(*x, 1);
}

TEST_P(DeviceOrder, RunsEachBlockAndLaneOnce) {
  a->launch(CountVisits{x, 37}, 11);
  a->launch(CountVisits{x, 37}, 0);
  a->synchronize();
  EXPECT_EQ(std::count(x, x + 37 * 11, 1), 37 * 11);
  EXPECT_EQ(std::count(x + 37 * 11, memory.as<std::int64_t>(memory.size()), 0), 512 - 37 * 11);
}

TEST_P(DeviceOrder, RefusesANegativeNumberOfBlocks) {
  EXPECT_THROW(a->launch(Set{x, 1}, -1), ArgumentError);
  a->synchronize();
  EXPECT_EQ(*x, 0);
}

TEST_P(DeviceOrder, AWaitOutlivesItsEventAndItsStream) {
  a->launch(Set{x, 1}, 1);
  a->record(*event);
  b->wait(*event);
  b->launch(Assign{y, x}, 1);
  event.reset();
  a.reset();
  b->synchronize();
  EXPECT_EQ(*y, 1);
}

TEST_P(DeviceOrder, AnEventOutlivesItsStream) {
  a->launch(Set{x, 1}, 1);
  a->record(*event);
  a.reset();
  EXPECT_TRUE(event->done());
  b->wait(*event);
  b->synchronize();
}

TEST_P(DeviceOrder, AStreamsEndFinishesItsWork) {
  for (std::int64_t i = 0; i < 12; ++i) a->launch(Append{x, i}, 1);
  a.reset();
  EXPECT_EQ(*x, digits(0, 12));
}

TEST_P(DeviceOrder, FreesMemoryOnlyWhenTheWorkOnItIsDone) {
  Buffer used = device->allocate(1 << 20);
  for (int i = 0; i < 100; ++i) a->fill(used.data(), 1, used.size());
  a->launch(Set{x, 1}, 1);
  used = Buffer();
  EXPECT_EQ(*x, 1);
}

TEST_P(DeviceOrder, UnpinsMemoryOnlyWhenTheWorkOnItIsDone) {
  std::vector<std::byte> owned(1 << 20);
  Buffer pinned = device->pin(owned);
  EXPECT_EQ(pinned.data(), owned.data());
  for (int i = 0; i < 100; ++i) a->fill(pinned.data(), 1, pinned.size());
  a->launch(Set{x, 1}, 1);
  pinned = Buffer();
  EXPECT_EQ(*x, 1);
}

TEST_P(DeviceOrder, RefusesAnotherDevicesEvents) {
  auto other = make_host_device();
  auto foreign = other->make_event();
  EXPECT_THROW(a->record(*foreign), ArgumentError);
  EXPECT_THROW(a->wait(*foreign), ArgumentError);
}

MOETAP_ON_EVERY_DEVICE(DeviceOrder);

}  // namespace
}  // namespace moetap::test
