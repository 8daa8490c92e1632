#include <moetap/error.h>
#include <moetap/read_transport.h>
#include <moetap/reader.h>
#include <moetap/transport.h>

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <tuple>

#include "test/gpu/devices.h"
#include "test/gpu/engine.h"
#include "test/gpu/expect_rows.h"
#include "test/gpu/scenario.h"
#include "test/gpu/test_kernels.h"
#include "test/gpu/watched_device.h"
#include "test/ipc/message_of.h"
#include "test/ipc/test_endpoint.h"

namespace moetap::test {
namespace {

const Router kRouter{ModelShape::uniform(5, 8, 128)};

// Both ends in one process: what matters here is the order of things on the device.
class DeviceTransport : public EndpointTest {
 protected:
  DeviceTransport() {
    endpoint.shape = kRouter.shape;
    endpoint.num_slots = Scenario::kSlots;
    endpoint.max_tokens = Scenario::kMaxTokens;
    endpoint.ring_depth = 4;
    endpoint.timeout = Milliseconds(20'000);
  }

  std::unique_ptr<Transport> transport(Device& device, int staging_depth = 2) const {
    return make_device_transport(device, endpoint, {.staging_depth = staging_depth});
  }
};

class DeviceTransportOn : public DeviceTransport,
                          public ::testing::WithParamInterface<DeviceMaker> {};
INSTANTIATE_TEST_SUITE_P(Devices, DeviceTransportOn, ::testing::ValuesIn(every_device()),
                         device_name);

enum class Held { compute, copies };

// Which side is delayed, how many staging buffers there are, and the seed.
class Delayed : public DeviceTransport,
                public ::testing::WithParamInterface<std::tuple<Held, int, std::uint64_t>> {};
INSTANTIATE_TEST_SUITE_P(Seeds, Delayed,
                         ::testing::Combine(::testing::Values(Held::compute, Held::copies),
                                            ::testing::Values(1, 2, 3),
                                            ::testing::Range<std::uint64_t>(1, 21)));

TEST_P(Delayed, TheCopyFollowsTheSnapshotAndTheNextSnapshotTheCopy) {  // H15
  const auto& [held, staging_depth, seed] = GetParam();
  const Scenario scenario(kRouter, plain_steps(4));
  auto owned = make_seeded_device(seed);
  SeededDevice& seeded = *owned;
  WatchedDevice device(std::move(owned));
  auto worker = transport(device, staging_depth);
  Stream& copies = device.last_stream();
  Engine engine(device, scenario, std::move(worker), {});
  Stream& compute = engine.stream();
  Reader reader(make_device_reader(endpoint));

  seeded.hold(held == Held::compute ? compute : copies, true);
  for (const ScenarioStep& step : scenario.steps) engine.run(step);
  engine.finish();
  EXPECT_TRUE(engine.failed().empty());
  for (const ScenarioStep& step : scenario.steps) {
    reader.wait_for(step.step, endpoint.timeout);
    expect_rows(reader, scenario, step);
  }
}

// The same where work takes its time: each stream in turn is late at every step.
class Late : public DeviceTransport,
             public ::testing::WithParamInterface<std::tuple<Held, int, DeviceMaker>> {};
INSTANTIATE_TEST_SUITE_P(Devices, Late,
                         ::testing::Combine(::testing::Values(Held::compute, Held::copies),
                                            ::testing::Values(1, 2),
                                            ::testing::ValuesIn(every_real_device())),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param) == Held::compute ? "compute"
                                                                                       : "copies") +
                                  std::to_string(std::get<1>(info.param)) + "_" +
                                  std::get<2>(info.param).name;
                         });

TEST_P(Late, TheCopyFollowsTheSnapshotAndTheNextSnapshotTheCopy) {  // H14, H15
  const auto& [held, staging_depth, maker] = GetParam();
  const Scenario scenario(kRouter, plain_steps(4));
  WatchedDevice device(maker());
  auto worker = transport(device, staging_depth);
  Stream& copies = device.last_stream();
  Engine engine(device, scenario, std::move(worker), {});
  Stream& compute = engine.stream();
  Reader reader(make_device_reader(endpoint));

  constexpr std::int64_t kLong = 20'000'000;  // ns: many times what a step's work takes
  for (const ScenarioStep& step : scenario.steps) {
    (held == Held::compute ? compute : copies).launch(SpinFor{kLong}, 1);
    engine.run(step);
  }
  engine.finish();
  EXPECT_TRUE(engine.failed().empty());
  for (const ScenarioStep& step : scenario.steps) {
    reader.wait_for(step.step, endpoint.timeout);
    expect_rows(reader, scenario, step);
  }
}

TEST_P(DeviceTransportOn, FullRingIsAnErrorThatLosesNothing) {  // H14
  endpoint.timeout = Milliseconds(30);
  const Scenario scenario(kRouter, plain_steps(6));
  const auto device = GetParam()();
  Engine engine(*device, scenario, transport(*device), {});
  Reader reader(make_device_reader(endpoint));
  for (int i = 0; i < 4; ++i) engine.run(scenario.steps[i]);
  engine.finish();

  const std::string full = message_of<TimeoutError>([&] { engine.run(scenario.steps[4]); });
  EXPECT_TRUE(contains(full, "4 wait for the scheduler, the oldest is of step 1")) << full;
  for (int i = 0; i < 4; ++i) {
    reader.wait_for(scenario.steps[i].step, Milliseconds(20'000));
    expect_rows(reader, scenario, scenario.steps[i]);
  }
  // The step is still open: its rows can follow now.
  engine.publish(scenario.steps[4]);
  engine.run(scenario.steps[5]);
  engine.finish();
  for (int i = 4; i < 6; ++i) {
    reader.wait_for(scenario.steps[i].step, Milliseconds(20'000));
    expect_rows(reader, scenario, scenario.steps[i]);
  }
}

TEST_F(DeviceTransport, DeviceThatIsBehindIsAnErrorThatBlamesIt) {
  endpoint.timeout = Milliseconds(30);
  const Scenario scenario(kRouter, plain_steps(5));
  const auto device = make_host_device();
  Engine engine(*device, scenario, transport(*device), {});
  Reader reader(make_device_reader(endpoint));
  std::atomic<bool> go{false};
  engine.stream().call(
      [](void* flag) {
        while (!static_cast<std::atomic<bool>*>(flag)->load()) std::this_thread::yield();
      },
      &go);
  for (int i = 0; i < 4; ++i) engine.run(scenario.steps[i]);
  const std::string late = message_of<TimeoutError>([&] { engine.finish(Milliseconds(10)); });
  EXPECT_TRUE(contains(late, "10 ms for the device")) << late;
  const std::string full = message_of<TimeoutError>([&] { engine.run(scenario.steps[4]); });
  EXPECT_TRUE(contains(full, "30 ms for the device")) << full;
  EXPECT_TRUE(contains(full, "4 have not left it")) << full;

  go = true;
  reader.wait_for(1, Milliseconds(20'000));
  engine.publish(scenario.steps[4]);
  for (const ScenarioStep& step : scenario.steps) {
    reader.wait_for(step.step, Milliseconds(20'000));
    expect_rows(reader, scenario, step);
  }
}

// A step that failed stops nothing, and is told once.
TEST_P(DeviceTransportOn, FailuresWaitUntilTheyAreTaken) {  // H37
  std::vector<ScenarioStep> steps = plain_steps(4);
  steps[0].trouble = Trouble::layer_missing;
  steps[2].trouble = Trouble::bad_id;
  const Scenario scenario(kRouter, steps);
  const auto device = GetParam()();
  Engine engine(*device, scenario, transport(*device), {});
  Reader reader(make_device_reader(endpoint));
  for (const ScenarioStep& step : steps) {
    engine.begin(step);
    engine.capturer().publish(engine.slot_mapping(), engine.stream());
  }
  engine.capturer().finalize(4, Milliseconds(20'000));
  EXPECT_EQ(engine.capturer().num_failed(), 2u);
  const std::vector<StepFailed> failures = engine.capturer().take_failures();
  ASSERT_EQ(failures.size(), 2u);
  EXPECT_EQ(failures[0].step(), Step(1));
  EXPECT_TRUE(contains(failures[0].what(), "step 1 failed: layer 4 was not captured"))
      << failures[0].what();
  EXPECT_EQ(failures[1].step(), Step(3));
  EXPECT_TRUE(contains(failures[1].reason(), "expert id 128")) << failures[1].what();
  EXPECT_TRUE(engine.capturer().take_failures().empty());
  EXPECT_EQ(engine.capturer().num_failed(), 2u);

  for (const ScenarioStep& step : steps) {
    if (step.fails()) {
      EXPECT_THROW(reader.wait_for(step.step, Milliseconds(20'000)), StepFailed);
    } else {
      reader.wait_for(step.step, Milliseconds(20'000));
    }
    expect_rows(reader, scenario, step);
  }
}

TEST_P(DeviceTransportOn, EndsOnlyWhenItsCopiesHaveLanded) {
  const Scenario scenario(kRouter, plain_steps(3));
  const auto device = GetParam()();
  auto engine = std::make_unique<Engine>(*device, scenario, transport(*device), EngineOptions{});
  Reader reader(make_device_reader(endpoint));
  for (const ScenarioStep& step : scenario.steps) engine->run(step);
  engine.reset();
  for (const ScenarioStep& step : scenario.steps) {
    reader.wait_for(step.step, Milliseconds(20'000));
    expect_rows(reader, scenario, step);
  }
}

TEST_P(DeviceTransportOn, PublishThatTheDeviceRefusesLosesNoRecord) {
  const Scenario scenario(kRouter, plain_steps(2));
  const auto device = GetParam()();
  Engine engine(*device, scenario, transport(*device), {});
  Reader reader(make_device_reader(endpoint));
  engine.begin(scenario.steps[0]);
  engine.stream().begin_capture();
  EXPECT_THROW(engine.publish(scenario.steps[0]), StateError);
  engine.stream().end_capture();
  engine.publish(scenario.steps[0]);
  engine.run(scenario.steps[1]);
  engine.finish();
  for (const ScenarioStep& step : scenario.steps) {
    reader.wait_for(step.step, Milliseconds(20'000));
    expect_rows(reader, scenario, step);
  }
}

TEST_F(DeviceTransport, NeedsAStagingBuffer) {
  const auto device = make_host_device();
  const std::string message = message_of<ArgumentError>([&] { transport(*device, 0); });
  EXPECT_TRUE(contains(message, "staging_depth is 0")) << message;
}

TEST_F(DeviceTransport, IsOneForAModelInAProcess) {  // H12, H22
  const auto device = make_host_device();
  const Capturer first(transport(*device));
  EXPECT_THROW(transport(*device), OwnedError);
  // A transport of the other kind takes other shared memory, but the model is the same.
  EXPECT_THROW(Capturer(make_shm_transport(*device, endpoint)), OwnedError);
}

}  // namespace
}  // namespace moetap::test
