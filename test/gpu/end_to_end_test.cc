// A worker and its scheduler, two processes, over both transports: every row that the scheduler
// reads is exact or says that it is not.
#include <moetap/error.h>
#include <moetap/read_transport.h>
#include <moetap/reader.h>
#include <moetap/transport.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>

#include "test/gpu/devices.h"
#include "test/gpu/engine.h"
#include "test/gpu/scenario.h"
#include "test/ipc/child_process.h"
#include "test/ipc/test_endpoint.h"

namespace moetap::test {
namespace {

struct TransportMaker {
  const char* name;
  std::unique_ptr<Transport> (*worker)(Device&, const Endpoint&);
  std::unique_ptr<SlotReadTransport> (*scheduler)(const Endpoint&);
  bool worker_sees_every_failure;  // a slot that comes twice is found by the end that scatters
};
std::ostream& operator<<(std::ostream& out, const TransportMaker& maker) {
  return out << maker.name;
}

const TransportMaker kTransports[] = {
    {"shm", make_shm_transport, make_shm_reader, true},
    {"device",
     [](Device& device, const Endpoint& endpoint) {
       return make_device_transport(device, endpoint);
     },
     make_device_reader, false},
};

// What the model looks like, and how its ids lie in memory.
struct Variant {
  const char* name;
  RankLayout layout;
  ModelShape shape;
  bool missing_routes;
  EngineOptions options;
  bool opt_in = false;
};
std::ostream& operator<<(std::ostream& out, const Variant& variant) { return out << variant.name; }

const Variant kVariants[] = {
    {"LocalInt32", RankLayout::local, ModelShape::uniform(5, 8, 128), true, {}},
    {"ConcatenatedInt64",
     RankLayout::concatenated,
     ModelShape({1, 2, 7}, 6, 512),
     true,
     {IdType::int64, 2, 3}},
    {"PaddedInt16",
     RankLayout::padded,
     ModelShape::uniform(4, 22, 512),
     true,
     {IdType::int16, 1, 0}},
    {"LocalUint8", RankLayout::local, ModelShape::uniform(4, 8, 120), false, {IdType::uint8, 1, 7}},
    {"LocalOptIn", RankLayout::local, ModelShape::uniform(5, 8, 128), true, {}, true},
    {"ConcatenatedOptIn",
     RankLayout::concatenated,
     ModelShape({1, 2, 7}, 6, 512),
     true,
     {IdType::int64, 2, 3},
     true},
    {"LocalFloat32Weights",
     RankLayout::local,
     ModelShape::uniform(5, 8, 128).with_weights(WeightType::float32),
     true,
     {}},
    {"PaddedBfloat16Weights",
     RankLayout::padded,
     ModelShape::uniform(3, 5, 200).with_weights(WeightType::bfloat16),
     true,
     {IdType::int16, 1, 0}},
    {"ConcatenatedOptInRoundedWeights",
     RankLayout::concatenated,
     ModelShape({1, 2, 7}, 6, 512).with_weights(WeightType::bfloat16),
     true,
     {IdType::int64, 2, 3, true},
     true},
};

class EndToEnd
    : public EndpointTest,
      public ::testing::WithParamInterface<std::tuple<TransportMaker, Variant, DeviceMaker>> {
 protected:
  EndToEnd() : scenario(make_scenario()) {
    const Variant& variant = std::get<Variant>(GetParam());
    endpoint.shape = variant.shape;
    endpoint.num_slots = Scenario::kSlots;
    endpoint.max_tokens = Scenario::kMaxTokens;
    endpoint.timeout = Milliseconds(20'000);
  }

  static Scenario make_scenario() {
    const auto& [transport, variant, device] = GetParam();
    return {device.seed + 100, Router{variant.shape, variant.missing_routes}, variant.layout,
            variant.opt_in};
  }

  void run_worker() {
    const auto& [transport, variant, maker] = GetParam();
    const std::unique_ptr<Device> device = maker();
    Engine engine(*device, scenario, transport.worker(*device, endpoint), variant.options);
    std::set<Step> expected;
    for (const ScenarioStep& step : scenario.steps) {
      engine.run(step);
      if (!step.fails()) continue;
      if (step.trouble == Trouble::slot_twice && !transport.worker_sees_every_failure) continue;
      expected.insert(step.step);
    }
    engine.finish();
    EXPECT_EQ(engine.failed(), expected);
    all_published.raise();
    all_read.wait();  // the worker owns the memory
  }

  void read_while_it_runs(Reader& reader);
  void read_one(Reader& reader, const ScenarioStep& step);
  void read_at_the_end(Reader& reader);

  Scenario scenario;
  Signal all_published;
  Signal all_read;
};

std::string case_name(const ::testing::TestParamInfo<EndToEnd::ParamType>& info) {
  return std::string(std::get<0>(info.param).name) + "_" + std::get<1>(info.param).name + "_" +
         std::get<2>(info.param).name;
}
INSTANTIATE_TEST_SUITE_P(All, EndToEnd,
                         ::testing::Combine(::testing::ValuesIn(kTransports),
                                            ::testing::ValuesIn(kVariants),
                                            ::testing::ValuesIn(every_device())),
                         case_name);

void EndToEnd::read_while_it_runs(Reader& reader) {
  for (const ScenarioStep& step : scenario.steps) {
    SCOPED_TRACE(::testing::Message() << "step " << step.step);
    try {
      reader.wait_for(step.step, endpoint.timeout);
      EXPECT_FALSE(step.fails()) << "a step that cannot be right was published";
    } catch (const StepFailed& failure) {
      EXPECT_EQ(failure.step(), step.step);
      EXPECT_TRUE(step.fails()) << failure.what();
    }
    read_one(reader, step);
  }
}

// The worker may be steps ahead, so a row may be gone; but then some later step took its slot.
void EndToEnd::read_one(Reader& reader, const ScenarioStep& step) {
  std::vector<Slot> slots = step.slots;
  std::erase_if(slots, [](Slot slot) { return slot < 0 || slot >= Slot(Scenario::kSlots); });
  const std::size_t row_bytes = reader.shape().row_bytes();
  std::vector<std::byte> rows(slots.size() * row_bytes);
  std::vector<RowState> states(slots.size());
  const StepWindow window{step.step, step.step};
  reader.read(slots, {&window, 1}, rows, states);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const Scenario::Row expected = scenario.expected(slots[i], window, step.step);
    const bool gone = states[i] == RowState::clobbered || states[i] == RowState::missing;
    if (gone && scenario.written_after(slots[i], step.step)) continue;
    EXPECT_EQ(row_state_name(states[i]), row_state_name(expected.state)) << "slot " << slots[i];
    if (states[i] != RowState::present) continue;
    const auto row = rows.begin() + static_cast<std::ptrdiff_t>(i * row_bytes);
    EXPECT_TRUE(std::equal(expected.bytes.begin(), expected.bytes.end(), row))
        << "slot " << slots[i];
  }
}

void EndToEnd::read_at_the_end(Reader& reader) {
  const Step last = scenario.steps.back().step;
  for (Slot slot = 0; slot < Slot(Scenario::kSlots); ++slot) {
    const StepWindow window{Step(static_cast<std::uint64_t>(slot.value()) % last.value()),
                            last - 1};
    std::vector<std::byte> row(reader.shape().row_bytes());
    RowState state{};
    reader.read({&slot, 1}, {&window, 1}, row, {&state, 1});
    const Scenario::Row expected = scenario.expected(slot, window, last);
    EXPECT_EQ(row_state_name(state), row_state_name(expected.state)) << "slot " << slot;
    if (state == RowState::present) {
      EXPECT_EQ(row, expected.bytes) << "slot " << slot;
    }
  }
}

// The worker is the process that tests before this one ran in: CUDA does not survive a fork.
TEST_P(EndToEnd, EveryRowIsExactOrSaysThatItIsNot) {
  ChildProcess scheduler([this] {
    Reader reader(std::get<TransportMaker>(GetParam()).scheduler(endpoint));
    read_while_it_runs(reader);
    all_published.wait();
    read_at_the_end(reader);
    all_read.raise();
  });
  run_worker();
  EXPECT_EQ(scheduler.join(), 0);
}

}  // namespace
}  // namespace moetap::test
