// Recording and replaying work, on every kind of device.
#include <moetap/device.h>
#include <moetap/error.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "test/gpu/device_test.h"
#include "test/gpu/test_kernels.h"

namespace moetap::test {
namespace {

class GraphReplay : public DeviceTest {
 protected:
  std::unique_ptr<Stream> stream = device->make_stream();
  Buffer memory = device->allocate_pinned(4096);
  Buffer device_memory = device->allocate(sizeof(std::int64_t));
  std::int64_t* const x = memory.as<std::int64_t>();
  std::int64_t* const y = x + 8;
  std::int64_t* const z = x + 16;

  void SetUp() override {
    stream->fill(memory.data(), 0, memory.size());
    stream->synchronize();
  }
};

TEST_P(GraphReplay, RunsNothingWhileItRecords) {
  stream->begin_capture();
  stream->launch(Set{x, 1}, 1);
  stream->fill(y, 0xFF, 8);
  stream->copy(device_memory.data(), x, 8);
  stream->copy(z, device_memory.data(), 8);
  const auto graph = stream->end_capture();
  stream->synchronize();
  EXPECT_EQ(*x, 0);
  EXPECT_EQ(*y, 0);
  stream->launch(*graph);
  stream->synchronize();
  EXPECT_EQ(*x, 1);
  EXPECT_EQ(*y, -1);
  EXPECT_EQ(*z, 1);
}

// H13: what differs from step to step is read from memory when the graph runs; what the host passed
// is frozen.
TEST_P(GraphReplay, ReadsMemoryAtEachReplay) {
  std::int64_t factor = 10;
  stream->begin_capture();
  stream->launch(AddScaled{y, x, factor, 4}, 1);
  factor = 1000;
  const auto graph = stream->end_capture();
  for (std::int64_t replay = 1; replay <= 3; ++replay) {
    for (int i = 0; i < 4; ++i) stream->launch(Set{x + i, replay + i}, 1);
    stream->launch(*graph);
  }
  stream->synchronize();
  for (int i = 0; i < 4; ++i) EXPECT_EQ(y[i], 10 * (6 + 3 * i));
}

TEST_P(GraphReplay, KeepsTheStreamsOrderAroundIt) {
  stream->begin_capture();
  stream->launch(AddScaled{y, x, 1, 1}, 1);
  stream->fill(x, 0, 8);
  const auto graph = stream->end_capture();
  for (std::int64_t i = 1; i <= 4; ++i) {
    stream->launch(Set{x, i}, 1);
    stream->launch(*graph);
  }
  stream->launch(AddScaled{z, y, 1, 1}, 1);
  stream->synchronize();
  EXPECT_EQ(*z, 10);
  EXPECT_EQ(*x, 0);
}

TEST_P(GraphReplay, RunsOnAnyStreamOrderedByThatOne) {
  stream->begin_capture();
  stream->launch(AddScaled{y, x, 1, 1}, 1);
  const auto graph = stream->end_capture();
  auto other = device->make_stream();
  auto event = device->make_event();
  Delay delay(*device, *stream);
  stream->launch(Set{x, 5}, 1);
  stream->record(*event);
  other->wait(*event);
  other->launch(*graph);
  other->record(*event);
  stream->wait(*event);
  stream->launch(Assign{z, y}, 1);
  delay.release();
  stream->synchronize();
  EXPECT_EQ(*z, 5);
}

TEST_P(GraphReplay, RunsOnSeveralStreamsAtOnce) {
  std::atomic<int> calls = 0;
  stream->begin_capture();
  for (int i = 0; i < 3; ++i) {
    stream->call([](void* count) { ++*static_cast<std::atomic<int>*>(count); }, &calls);
  }
  const auto graph = stream->end_capture();
  auto other = device->make_stream();
  for (int i = 0; i < 50; ++i) {
    stream->launch(*graph);
    other->launch(*graph);
  }
  stream->synchronize();
  other->synchronize();
  EXPECT_EQ(calls, 300);
}

TEST_P(GraphReplay, CallsBackAtEachReplay) {
  struct Seen {
    const std::int64_t* value;
    std::vector<std::int64_t> values;
  } seen{x, {}};
  stream->begin_capture();
  stream->call(
      [](void* argument) {
        auto* into = static_cast<Seen*>(argument);
        into->values.push_back(*into->value);
      },
      &seen);
  const auto graph = stream->end_capture();
  for (std::int64_t i = 1; i <= 3; ++i) {
    stream->launch(Set{x, i}, 1);
    stream->launch(*graph);
  }
  stream->synchronize();
  EXPECT_EQ(seen.values, (std::vector<std::int64_t>{1, 2, 3}));
}

TEST_P(GraphReplay, MayBePartOfAnotherGraph) {
  stream->begin_capture();
  stream->launch(AddScaled{y, x, 1, 1}, 1);
  auto inner = stream->end_capture();
  stream->begin_capture();
  stream->launch(Set{x, 3}, 1);
  stream->launch(*inner);
  stream->launch(*inner);
  const auto outer = stream->end_capture();
  inner.reset();
  stream->launch(*outer);
  stream->launch(*outer);
  stream->synchronize();
  EXPECT_EQ(*y, 12);
}

TEST_P(GraphReplay, OutlivesTheGraphAndTheStreamThatRecordedIt) {
  auto recorder = device->make_stream();
  recorder->begin_capture();
  recorder->launch(Set{x, 3}, 1);
  auto graph = recorder->end_capture();
  recorder.reset();
  stream->launch(*graph);
  graph.reset();
  stream->synchronize();
  EXPECT_EQ(*x, 3);
}

TEST_P(GraphReplay, RefusesWhatCannotBeRecordedAndGoesOnRecording) {
  auto event = device->make_event();
  auto other = device->make_stream();
  other->record(*event);
  stream->begin_capture();
  EXPECT_THROW(stream->synchronize(), StateError);
  EXPECT_THROW((void)stream->idle(), StateError);
  EXPECT_THROW(stream->record(*event), StateError);
  EXPECT_THROW(stream->wait(*event), StateError);
  EXPECT_THROW(stream->begin_capture(), StateError);
  stream->launch(Set{x, 3}, 1);
  const auto graph = stream->end_capture();
  stream->launch(*graph);
  stream->synchronize();
  EXPECT_EQ(*x, 3);
}

TEST_P(GraphReplay, LeavesOtherStreamsAlone) {
  auto other = device->make_stream();
  auto event = device->make_event();
  stream->begin_capture();
  stream->launch(Set{x, 1}, 1);
  other->launch(Set{y, 2}, 1);
  other->record(*event);
  other->synchronize();
  event->synchronize();
  EXPECT_EQ(*y, 2);
  EXPECT_EQ(*x, 0);
  stream->end_capture();
}

TEST_P(GraphReplay, RefusesAnEndWithoutABegin) { EXPECT_THROW(stream->end_capture(), StateError); }

TEST_P(GraphReplay, RefusesAnotherDevicesGraphs) {
  auto other = make_host_device();
  auto recorder = other->make_stream();
  recorder->begin_capture();
  const auto foreign = recorder->end_capture();
  EXPECT_THROW(stream->launch(*foreign), ArgumentError);
}

TEST_P(GraphReplay, MayBeRecordedByOneThreadAndEndedByAnother) {
  auto recorder = device->make_stream();
  std::thread([&] {
    recorder->begin_capture();
    recorder->launch(Set{x, 3}, 1);
  }).join();
  const auto graph = recorder->end_capture();
  EXPECT_EQ(*x, 0);
  recorder->launch(*graph);
  recorder->synchronize();
  EXPECT_EQ(*x, 3);
  std::thread([&] { recorder->begin_capture(); }).join();
  recorder.reset();  // which gives the recording up
}

TEST_P(GraphReplay, AStreamMayEndWhileItRecords) {
  auto recorder = device->make_stream();
  recorder->begin_capture();
  recorder->launch(Set{x, 1}, 1);
  recorder.reset();
  EXPECT_EQ(*x, 0);
}

MOETAP_ON_EVERY_DEVICE(GraphReplay);

}  // namespace
}  // namespace moetap::test
