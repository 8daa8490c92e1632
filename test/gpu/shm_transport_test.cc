#include <moetap/error.h>
#include <moetap/read_transport.h>
#include <moetap/reader.h>
#include <moetap/transport.h>

#include <gtest/gtest.h>

#include <string>

#include "ipc/internal/names.h"
#include "ipc/internal/native_layout.h"
#include "ipc/internal/segment.h"
#include "test/gpu/devices.h"
#include "test/gpu/engine.h"
#include "test/gpu/expect_rows.h"
#include "test/gpu/scenario.h"
#include "test/ipc/buffer_lock.h"
#include "test/ipc/message_of.h"
#include "test/ipc/test_endpoint.h"

namespace moetap::test {
namespace {

constexpr Milliseconds kPatience{20'000};

// Both ends in one process; end_to_end_test.cc has them in two.
class ShmTransportOn : public EndpointTest, public ::testing::WithParamInterface<DeviceMaker> {
 protected:
  ShmTransportOn() {
    endpoint.shape = ModelShape::uniform(5, 8, 128);
    endpoint.num_slots = Scenario::kSlots;
    endpoint.max_tokens = Scenario::kMaxTokens;
    endpoint.timeout = kPatience;
  }

  std::unique_ptr<Device> device = GetParam()();
};
INSTANTIATE_TEST_SUITE_P(Devices, ShmTransportOn, ::testing::ValuesIn(every_device()), device_name);

TEST_P(ShmTransportOn, PublishReturnsWhenTheRowsAreVisible) {
  const Scenario scenario(Router{endpoint.shape}, plain_steps(5));
  Engine engine(*device, scenario, make_shm_transport(*device, endpoint), {});
  Reader reader(make_shm_reader(endpoint));
  for (const ScenarioStep& step : scenario.steps) {
    engine.run(step);
    EXPECT_EQ(reader.poll(), step.step);
    expect_rows(reader, scenario, step);
  }
}

TEST_P(ShmTransportOn, PublishThrowsTheFailureOfItsOwnStep) {
  for (const Trouble trouble :
       {Trouble::layer_missing, Trouble::bad_id, Trouble::bad_slot, Trouble::slot_twice}) {
    std::vector<ScenarioStep> steps = plain_steps(3);
    steps[1].trouble = trouble;
    steps[1].slots = steps[0].slots;  // whose rows the failed step takes away
    if (trouble == Trouble::bad_slot) steps[1].slots[4] = Slot(Scenario::kSlots);
    if (trouble == Trouble::slot_twice) steps[1].slots[4] = steps[1].slots[5];
    const Scenario scenario(Router{endpoint.shape}, steps);
    Engine engine(*device, scenario, make_shm_transport(*device, endpoint), {});
    Reader reader(make_shm_reader(endpoint));
    engine.run(steps[0]);
    expect_rows(reader, scenario, steps[0]);
    engine.run(steps[1]);
    EXPECT_EQ(engine.failed(), std::set<Step>{2});
    EXPECT_THROW(reader.wait_for(2, kPatience), StepFailed);
    if (trouble == Trouble::bad_slot) steps[1].slots.erase(steps[1].slots.begin() + 4);
    expect_rows(reader, scenario, steps[1]);
    engine.run(steps[2]);
    reader.wait_for(3, kPatience);
    expect_rows(reader, scenario, steps[2]);
  }
}

// Steps are neither opened nor published by the replay of a graph: what an engine records stays as
// it was when it is told so.
TEST_P(ShmTransportOn, RefusesToBePartOfAGraphAndLeavesTheRecordingAlone) {
  const Router router{endpoint.shape};
  Model model(*device, router, 16);
  const auto stream = device->make_stream();
  Capturer capturer(make_shm_transport(*device, endpoint));
  for (const int layer : endpoint.shape.moe_layers()) capturer.bind(layer);
  Reader reader(make_shm_reader(endpoint));
  const Buffer slots = upload(*device, *stream, std::vector<Slot>{3, 4, 5, 6});
  const Buffer others = upload(*device, *stream, std::vector<Slot>{-77, -77, -77, -77});
  const auto capture = [&] {
    for (int i = 0; i < endpoint.shape.num_layers(); ++i) {
      const int layer = endpoint.shape.moe_layers()[static_cast<std::size_t>(i)];
      capturer.capture(layer, model.topk_ids(i, 4), *stream);
    }
  };

  const TokenRange half{0, 2};  // so that a list of tokens is copied too
  capturer.begin_step({.step = 1, .num_tokens = 4, .wanted = std::span(&half, 1)}, *stream);
  model.route(1, 4, *stream);
  stream->begin_capture();
  capture();
  std::string message =
      message_of<StateError>([&] { capturer.publish(others.as<const Slot>(), *stream); });
  EXPECT_TRUE(contains(message, "publish() on a stream that records a graph")) << message;
  const auto graph = stream->end_capture();
  stream->launch(*graph);
  capturer.publish(slots.as<const Slot>(), *stream);
  EXPECT_NO_THROW(reader.wait_for(1, kPatience));

  model.route(2, 4, *stream);
  stream->begin_capture();
  message =
      message_of<StateError>([&] { capturer.begin_step({.step = 2, .num_tokens = 4}, *stream); });
  EXPECT_TRUE(contains(message, "begin_step() on a stream that records a graph")) << message;
  const auto empty = stream->end_capture();
  capturer.begin_step({.step = 2, .num_tokens = 4}, *stream);
  capture();
  stream->launch(*empty);  // which must not open the step again
  capturer.publish(slots.as<const Slot>(), *stream);
  EXPECT_NO_THROW(reader.wait_for(2, kPatience));
  std::vector<std::byte> row(endpoint.shape.row_bytes());
  RowState state{};
  const Slot slot = 6;
  const StepWindow window{2, 2};
  reader.read({&slot, 1}, {&window, 1}, row, {&state, 1});
  EXPECT_EQ(state, RowState::present);
  EXPECT_EQ(row, router.row(2, 3));
}

// The worker must not look for the mistake in its own slot mapping.
TEST_P(ShmTransportOn, StampThatAnotherProcessWroteFailsTheStepAndSaysSo) {
  std::vector<ScenarioStep> steps = plain_steps(3);
  steps[1].trouble = Trouble::slot_twice;  // is what the engine expects of it: a step that fails
  steps[1].slots = steps[0].slots;
  const Scenario scenario(Router{endpoint.shape}, steps);
  Engine engine(*device, scenario, make_shm_transport(*device, endpoint), {});
  Reader reader(make_shm_reader(endpoint));
  engine.run(steps[0]);
  const Segment segment = Segment::open(buffer_name(endpoint));
  auto* stamps = reinterpret_cast<Step*>(segment.bytes().data() + sizeof(ShmControl));
  stamps[steps[0].slots[0].value()] = kWriting;
  engine.run(steps[1]);
  EXPECT_EQ(engine.failed(), std::set<Step>{2});
  const std::string text = message_of<StepFailed>([&] { reader.wait_for(2, kPatience); });
  EXPECT_TRUE(contains(text, "overwritten by another process")) << text;
  engine.run(steps[2]);
  reader.wait_for(3, kPatience);
  expect_rows(reader, scenario, steps[2]);
}

TEST_P(ShmTransportOn, LockThatIsHeldTooLongIsAnErrorThatLosesNothing) {  // H24
  endpoint.timeout = Milliseconds(20);
  std::vector<ScenarioStep> steps = plain_steps(3);
  steps[1].trouble = Trouble::bad_id;
  const Scenario scenario(Router{endpoint.shape}, steps);
  Engine engine(*device, scenario, make_shm_transport(*device, endpoint), {});
  Reader reader(make_shm_reader(endpoint));
  BufferLock other(endpoint);
  for (const ScenarioStep& step : steps) {  // a good one, one that fails, a good one
    other.lock();
    const std::string held = message_of<TimeoutError>([&] { engine.run(step); });
    EXPECT_TRUE(contains(held, "20 ms")) << held;
    other.unlock();
    engine.publish(step);  // it is still open
    EXPECT_EQ(reader.poll(), step.step);
    expect_rows(reader, scenario, step);
  }
  EXPECT_EQ(engine.failed(), std::set<Step>{2});
}

TEST_P(ShmTransportOn, WireLayoutHoldsTheIdsAsInt32) {
  endpoint.layout = ShmLayout::wire;
  const Router router{.shape = endpoint.shape, .missing_routes = true};
  const Scenario scenario(router, plain_steps(7));
  Engine engine(*device, scenario, make_shm_transport(*device, endpoint), {});
  Reader reader(make_shm_reader(endpoint));
  for (const ScenarioStep& step : scenario.steps) engine.run(step);
  int missing = 0;
  for (const ScenarioStep& step : scenario.steps) {
    for (std::size_t i = 0; i < step.slots.size(); ++i) {
      const StepWindow any;
      std::vector<std::byte> row(endpoint.shape.row_bytes());
      RowState state{};
      reader.read({&step.slots[i], 1}, {&any, 1}, row, {&state, 1});
      if (router.misses_route(step.step, static_cast<std::int64_t>(i))) {
        EXPECT_EQ(state, RowState::missing);
        ++missing;
      } else {
        EXPECT_EQ(state, RowState::unverified);
        EXPECT_EQ(row, router.row(step.step, static_cast<std::int64_t>(i)));
      }
    }
  }
  EXPECT_GT(missing, 0);
}

}  // namespace
}  // namespace moetap::test
