// Opting in: rows that are not wanted cost nothing, and the others lose nothing.
#include <moetap/error.h>
#include <moetap/read_transport.h>
#include <moetap/reader.h>
#include <moetap/transport.h>

#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "lib/internal/step_record.h"
#include "test/gpu/counting_device.h"
#include "test/gpu/devices.h"
#include "test/gpu/engine.h"
#include "test/gpu/expect_rows.h"
#include "test/gpu/scenario.h"
#include "test/gpu/watched_device.h"
#include "test/ipc/buffer_lock.h"
#include "test/ipc/message_of.h"
#include "test/ipc/test_endpoint.h"

namespace moetap::test {
namespace {

constexpr Milliseconds kPatience{20'000};
const Router kRouter{ModelShape::uniform(5, 8, 128)};
using Ranges = std::vector<TokenRange>;

// Plain steps of 8 tokens, the i-th with the i-th of these.
std::vector<ScenarioStep> steps_wanting(const std::vector<std::optional<Ranges>>& wanted) {
  std::vector<ScenarioStep> steps = plain_steps(static_cast<int>(wanted.size()));
  for (std::size_t i = 0; i < steps.size(); ++i) steps[i].wanted = wanted[i];
  return steps;
}

class WantedRows : public EndpointTest {
 protected:
  WantedRows() {
    endpoint.shape = kRouter.shape;
    endpoint.num_slots = Scenario::kSlots;
    endpoint.max_tokens = Scenario::kMaxTokens;
    endpoint.ring_depth = 4;
    endpoint.timeout = kPatience;
  }

  std::size_t record_bytes(std::int64_t tokens) const {
    return StepRecordLayout(endpoint.shape, tokens).bytes;
  }
};

enum class Kind { shm, device, per_request };

class WantedRowsOn : public WantedRows,
                     public ::testing::WithParamInterface<std::tuple<Kind, DeviceMaker>> {
 protected:
  std::unique_ptr<Transport> transport(Device& on) const {
    switch (std::get<Kind>(GetParam())) {
      case Kind::shm:
        return make_shm_transport(on, endpoint);
      case Kind::device:
        return make_device_transport(on, endpoint);
      case Kind::per_request:
        return make_device_transport(on, endpoint, {.host_cache = HostCache::per_request});
    }
    return nullptr;
  }
  std::unique_ptr<SlotReadTransport> reader() const {
    return std::get<Kind>(GetParam()) == Kind::shm ? make_shm_reader(endpoint)
                                                   : make_device_reader(endpoint);
  }
  std::unique_ptr<Device> device = std::get<DeviceMaker>(GetParam())();
};

std::string case_name(const ::testing::TestParamInfo<WantedRowsOn::ParamType>& info) {
  constexpr const char* kNames[] = {"shm", "device", "perRequest"};
  return std::string(kNames[static_cast<int>(std::get<0>(info.param))]) + "_" +
         std::get<1>(info.param).name;
}
INSTANTIATE_TEST_SUITE_P(All, WantedRowsOn,
                         ::testing::Combine(::testing::Values(Kind::shm, Kind::device,
                                                              Kind::per_request),
                                            ::testing::ValuesIn(every_device())),
                         case_name);

TEST_P(WantedRowsOn, OnlyTheirBytesMoveAndWithNobodyAskingNothingIsQueued) {
  std::vector<ScenarioStep> steps =
      steps_wanting({std::nullopt, Ranges{{1, 3}, {5, 6}}, Ranges{}, Ranges{{0, 3}, {3, 8}}});
  for (ScenarioStep& step : steps) step.requests = {{1, 0, 8}};
  const Scenario scenario(kRouter, steps);
  CountingDevice counting(std::move(device));
  Engine engine(counting, scenario, transport(counting), {});
  std::vector<CountingDevice::Queued> queued;
  for (const ScenarioStep& step : steps) {
    engine.begin(step);
    counting.take();
    engine.publish(step);
    queued.push_back(counting.take());
  }
  engine.finish();
  const std::vector<std::string> kernels = {"SnapshotKernel<std::uint8_t>"};
  EXPECT_EQ(queued[0].copies, std::vector{record_bytes(8)});
  EXPECT_EQ(queued[0].kernels, kernels);
  const std::size_t list = 3 * sizeof(std::uint32_t);
  EXPECT_EQ(queued[1].copies, (std::vector{list, record_bytes(3)}));
  EXPECT_EQ(queued[1].kernels, kernels);
  EXPECT_EQ(queued[2],
            CountingDevice::Queued{.others = 1});  // an event that the next step waits for
  EXPECT_EQ(queued[3], queued[0]);                 // all are wanted, in so many words
}

class SlotRowsOn : public WantedRowsOn {};
INSTANTIATE_TEST_SUITE_P(All, SlotRowsOn,
                         ::testing::Combine(::testing::Values(Kind::shm, Kind::device),
                                            ::testing::ValuesIn(every_device())),
                         case_name);

TEST_P(SlotRowsOn, SlotsOfOtherTokensKeepWhatTheyHad) {  // H11
  std::vector<ScenarioStep> steps = steps_wanting({std::nullopt, Ranges{{1, 3}, {5, 6}}});
  steps[1].slots = steps[0].slots;
  const Scenario scenario(kRouter, steps);
  Engine engine(*device, scenario, transport(*device), {});
  Reader reader(this->reader());
  for (const ScenarioStep& step : steps) engine.run(step);
  engine.finish();
  reader.wait_for(2, kPatience);
  for (std::int64_t token = 0; token < 8; ++token) {
    const Slot slot = steps[0].slots[static_cast<std::size_t>(token)];
    const bool wanted = steps[1].wants(token);
    for (const Step step : {Step(1), Step(2)}) {
      SCOPED_TRACE(::testing::Message() << "token " << token << ", window of step " << step);
      const StepWindow window{step, step};
      std::vector<std::byte> row(endpoint.shape.row_bytes());
      RowState state{};
      reader.read({&slot, 1}, {&window, 1}, row, {&state, 1});
      // The first owner's row is still exact. The second one's window says that it is not his.
      const RowState other = wanted ? RowState::clobbered : RowState::stale;
      EXPECT_EQ(state, wanted == (step == 2) ? RowState::present : other);
      if (state == RowState::present) {
        EXPECT_EQ(row, kRouter.row(step, token));
      }
    }
  }
}

TEST_P(SlotRowsOn, StepThatNobodyWantsHasNoOutcome) {  // H3
  std::vector<ScenarioStep> steps =
      steps_wanting({std::nullopt, Ranges{}, Ranges{}, Ranges{{2, 4}}, Ranges{}});
  steps[1].trouble = Trouble::layer_missing;
  steps[2].trouble = Trouble::bad_id;
  const Scenario scenario(kRouter, steps);
  Engine engine(*device, scenario, transport(*device), {});
  Reader reader(this->reader());
  for (int i = 0; i < 3; ++i) engine.run(steps[static_cast<std::size_t>(i)]);
  engine.finish();  // waits for step 1 only
  reader.wait_for(1, kPatience);
  EXPECT_EQ(reader.poll(), Step(1));
  EXPECT_THROW(reader.wait_for(2, Milliseconds(1)), TimeoutError);
  engine.run(steps[3]);
  engine.run(steps[4]);
  engine.finish();
  EXPECT_TRUE(engine.failed().empty());
  for (const ScenarioStep& step : steps) {
    if (step.step == 5) continue;
    reader.wait_for(step.step, kPatience);  // the next one that comes stands for it
    expect_rows(reader, scenario, step);
  }
  EXPECT_EQ(reader.poll(), Step(4));
}

TEST_P(SlotRowsOn, SlotIsLookedAtOnlyIfItsTokenIsWanted) {
  std::vector<ScenarioStep> steps =
      steps_wanting({Ranges{{0, 4}}, Ranges{{0, 4}}, Ranges{{3, 6}}, Ranges{{0, 2}, {5, 8}}});
  for (const int i : {0, 2}) {
    steps[static_cast<std::size_t>(i)].trouble = Trouble::bad_slot;
    steps[static_cast<std::size_t>(i)].slots[4] = Slot(Scenario::kSlots);
  }
  for (const int i : {1, 3}) {
    steps[static_cast<std::size_t>(i)].trouble = Trouble::slot_twice;
    steps[static_cast<std::size_t>(i)].slots[0] = steps[static_cast<std::size_t>(i)].slots[7];
  }
  const Scenario scenario(kRouter, steps);
  Engine engine(*device, scenario, transport(*device), {});
  Reader reader(this->reader());
  for (const ScenarioStep& step : steps) engine.run(step);
  engine.finish();
  for (const Step good : {Step(1), Step(2)}) reader.wait_for(good, kPatience);
  const std::string slot = message_of<StepFailed>([&] { reader.wait_for(3, kPatience); });
  EXPECT_TRUE(contains(slot, "token 4: slot 60")) << slot;
  const std::string twice = message_of<StepFailed>([&] { reader.wait_for(4, kPatience); });
  EXPECT_TRUE(contains(twice, "twice")) << twice;
  steps[0].slots[4] = steps[2].slots[4] = 0;  // which can be asked for, and no step has a row of
  for (const ScenarioStep& step : steps) expect_rows(reader, scenario, step);
}

TEST_F(WantedRows, StepThatNobodyWantsWaitsForNoReader) {  // H14, H24
  endpoint.timeout = Milliseconds(30);
  std::vector<std::optional<Ranges>> wanted(5);
  wanted[4] = Ranges{};
  const Scenario scenario(kRouter, steps_wanting(wanted));
  const auto device = make_host_device();
  Engine engine(*device, scenario, make_device_transport(*device, endpoint), {});
  for (const ScenarioStep& step : scenario.steps) engine.run(step);  // four fill the ring
  engine.finish();
}

TEST_F(WantedRows, StepThatNobodyWantsWaitsForNoLock) {  // H24
  endpoint.timeout = Milliseconds(30);
  const Scenario scenario(kRouter, steps_wanting({Ranges{}}));
  const auto device = make_host_device();
  Engine engine(*device, scenario, make_shm_transport(*device, endpoint), {});
  BufferLock other(endpoint);
  other.lock();
  engine.run(scenario.steps[0]);
  other.unlock();
}

TEST_F(WantedRows, OfTheWireLayoutLeaveTheOthersAsTheyWere) {
  endpoint.layout = ShmLayout::wire;
  std::vector<ScenarioStep> steps = steps_wanting({std::nullopt, Ranges{{1, 3}, {5, 6}}});
  steps[1].slots = steps[0].slots;
  const Scenario scenario(kRouter, steps);
  const auto device = make_host_device();
  Engine engine(*device, scenario, make_shm_transport(*device, endpoint), {});
  Reader reader(make_shm_reader(endpoint));
  for (const ScenarioStep& step : steps) engine.run(step);
  for (std::int64_t token = 0; token < 8; ++token) {
    const StepWindow any;
    std::vector<std::byte> row(endpoint.shape.row_bytes());
    RowState state{};
    reader.read({&steps[0].slots[static_cast<std::size_t>(token)], 1}, {&any, 1}, row, {&state, 1});
    EXPECT_EQ(state, RowState::unverified);
    EXPECT_EQ(row, kRouter.row(Step(steps[1].wants(token) ? 2 : 1), token)) << token;
  }
}

// Which side is delayed, how many staging buffers there are, and the seed.
enum class Held { compute, copies };
class DelayedWantedRows
    : public WantedRows,
      public ::testing::WithParamInterface<std::tuple<Held, int, std::uint64_t>> {};
INSTANTIATE_TEST_SUITE_P(Seeds, DelayedWantedRows,
                         ::testing::Combine(::testing::Values(Held::compute, Held::copies),
                                            ::testing::Values(1, 2, 3),
                                            ::testing::Range<std::uint64_t>(1, 21)));

TEST_P(DelayedWantedRows, TheirListStaysAsItIsUntilItWasRead) {  // H13, H14, H15
  const auto& [held, staging_depth, seed] = GetParam();
  std::mt19937_64 random(seed);
  std::vector<ScenarioStep> steps;
  for (Step number = 1; number <= 20; ++number) {
    ScenarioStep step = plain_steps(static_cast<int>(1 + number.value() % 7)).back();
    step.step = number;
    step.graph = random() % 2 == 0;
    if (step.graph) step.padded_tokens = Scenario::kGraphTokens;
    while (!step.wanted || step.wanted->empty()) step.wanted = draw_wanted(random, 8);
    steps.push_back(step);
  }
  const Scenario scenario(kRouter, steps);
  auto owned = make_seeded_device(seed);
  SeededDevice& seeded = *owned;
  WatchedDevice device(std::move(owned));
  auto worker = make_device_transport(device, endpoint, {.staging_depth = staging_depth});
  Stream& copies = device.last_stream();
  Engine engine(device, scenario, std::move(worker), {});
  Stream& compute = engine.stream();
  Reader reader(make_device_reader(endpoint));

  seeded.hold(held == Held::compute ? compute : copies, true);
  for (const ScenarioStep& step : steps) {
    engine.begin(step);
    // As late as it can be: the ring has room for this step, and no other has left it.
    while (reader.poll() + 4 < step.step) compute.idle();
    engine.publish(step);
    for (Step old = step.step < 4 ? 1 : step.step - 3; old <= reader.poll(); ++old) {
      expect_rows(reader, scenario, steps[old.value() - 1]);
    }
  }
  engine.finish();
  reader.wait_for(20, kPatience);
  EXPECT_TRUE(engine.failed().empty());
  for (const Step last : {Step(17), Step(18), Step(19), Step(20)})
    expect_rows(reader, scenario, steps[last.value() - 1]);
}

}  // namespace
}  // namespace moetap::test
