// Steps that end without their rows: what the reader hears, and that the next step works.
#include <moetap/capturer.h>
#include <moetap/error.h>
#include <moetap/read_transport.h>
#include <moetap/reader.h>
#include <moetap/route_sink.h>
#include <moetap/transport.h>

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "test/gpu/devices.h"
#include "test/gpu/expect_rows.h"
#include "test/gpu/model.h"
#include "test/gpu/scenario.h"
#include "test/ipc/message_of.h"
#include "test/ipc/test_endpoint.h"

namespace moetap::test {
namespace {

constexpr Milliseconds kPatience{20'000};
constexpr std::int64_t kTokens = 8;  // of a step
const Router kRouter{ModelShape::uniform(5, 8, 128)};

enum class Kind { shm, device, per_request, capture_only };

// An engine whose forward pass may throw, under calls or with a graph.
class GivenUpStepOn : public EndpointTest,
                      public ::testing::WithParamInterface<std::tuple<Kind, DeviceMaker>> {
 protected:
  GivenUpStepOn() {
    endpoint.shape = kRouter.shape;
    endpoint.num_slots = Scenario::kSlots;
    endpoint.max_tokens = kTokens;
    endpoint.timeout = kPatience;
    make();
  }

  static Kind kind() { return std::get<0>(GetParam()); }

  void make() {
    capturer.reset();
    capturer = std::make_unique<Capturer>(transport());
    for (const int layer : kRouter.shape.moe_layers()) capturer->bind(layer);
    const GraphGuard recording(*capturer, kTokens);
    stream->begin_capture();
    capture(5);
    graph = stream->end_capture();
  }

  std::unique_ptr<Transport> transport() {
    switch (kind()) {
      case Kind::shm:
        return make_shm_transport(*device, endpoint);
      case Kind::device:
        return make_device_transport(*device, endpoint);
      case Kind::per_request:
        return make_device_transport(
            *device, endpoint, {.host_cache = HostCache::per_request, .drafts = Drafts::chain});
      case Kind::capture_only:
        break;
    }
    return make_capture_only_transport(*device, endpoint);
  }

  void capture(int layers) {
    for (int layer = 0; layer < layers; ++layer) {
      capturer->capture(layer, model.topk_ids(layer, kTokens), *stream);
    }
  }

  const Slot* slots_of(const ScenarioStep& step) {
    slots = upload(*device, *stream, step.slots);
    return slots.as<const Slot>();
  }

  StepInfo info(Step step) const {
    return {.step = step, .num_tokens = kTokens, .requests = spans};
  }

  void run(const ScenarioStep& step) {
    model.route(step.step, kTokens, *stream);
    StepGuard open(*capturer, info(step.step), *stream);
    if (step.graph) {
      stream->launch(*graph);
    } else {
      capture(5);
    }
    open.publish(slots_of(step));
  }

  // The forward pass throws after `layers` layers, or after a graph.
  void lose(const ScenarioStep& step, int layers) {
    try {
      const StepGuard open(*capturer, info(step.step), *stream);
      if (step.graph) stream->launch(*graph);
      if (!step.graph) capture(layers);
      throw std::runtime_error("out of memory");
    } catch (const std::runtime_error&) {
    }
  }

  void expect_taken(const std::vector<Step>& failed) {
    std::vector<Step> taken;
    for (const StepFailed& failure : capturer->take_failures()) {
      EXPECT_TRUE(contains(failure.reason(), "gave it up")) << failure.what();
      taken.push_back(failure.step());
    }
    EXPECT_EQ(taken, failed);
  }

  std::unique_ptr<Device> device = std::get<1>(GetParam())();
  std::unique_ptr<Stream> stream = device->make_stream();
  Model model{*device, kRouter, kTokens};
  Buffer slots;
  std::vector<RequestSpan> spans{{1, 0, kTokens}};
  std::unique_ptr<Capturer> capturer;
  std::unique_ptr<Graph> graph;
};

std::string case_name(const ::testing::TestParamInfo<GivenUpStepOn::ParamType>& info) {
  constexpr const char* kNames[] = {"shm", "device", "per_request", "capture_only"};
  return std::string(kNames[static_cast<int>(std::get<0>(info.param))]) + "_" +
         std::get<1>(info.param).name;
}
INSTANTIATE_TEST_SUITE_P(All, GivenUpStepOn,
                         ::testing::Combine(::testing::Values(Kind::shm, Kind::device,
                                                              Kind::per_request,
                                                              Kind::capture_only),
                                            ::testing::ValuesIn(every_device())),
                         case_name);

// Steps 2, 4 and 5 throw: by calls, all at once before the first layer, and after a graph.
TEST_P(GivenUpStepOn, IsToldAndTheNextStepWorks) {  // H37
  std::vector<ScenarioStep> steps = plain_steps(6);
  steps[2].graph = steps[4].graph = true;
  const Scenario scenario(kRouter, steps);
  std::unique_ptr<Reader> reader;
  std::unique_ptr<RequestReader> by_request;
  if (kind() == Kind::shm) reader = std::make_unique<Reader>(make_shm_reader(endpoint));
  if (kind() == Kind::device) reader = std::make_unique<Reader>(make_device_reader(endpoint));
  if (kind() == Kind::per_request) {
    by_request = std::make_unique<RequestReader>(make_request_reader(endpoint));
  }
  const auto wait_for = [&](Step step) {
    reader ? reader->wait_for(step, kPatience) : by_request->wait_for(step, kPatience);
  };
  for (const ScenarioStep& step : steps) {
    spans = {{1, (step.step - Step(1)) * kTokens, kTokens}};
    const bool lost = step.step == 2 || step.step == 4 || step.step == 5;
    if (lost) {
      lose(step, step.step == 2 ? 3 : 0);
    } else {
      run(step);
    }
    if (kind() == Kind::capture_only) continue;
    capturer->finalize(step.step, kPatience);
    if (lost) {
      const std::string why = message_of<StepFailed>([&] { wait_for(step.step); });
      EXPECT_TRUE(contains(why, "gave it up")) << why;
      EXPECT_FALSE(contains(why, "ring was full")) << why;
      expect_taken({step.step});
    } else {
      EXPECT_NO_THROW(wait_for(step.step));
      expect_taken({});
      if (reader) expect_rows(*reader, scenario, step);
    }
    if (!reader || !lost) continue;
    std::vector<std::byte> rows(kTokens * kRouter.shape.row_bytes());
    std::vector<RowState> states(kTokens);
    const StepWindow window{step.step, step.step};
    reader->read(step.slots, {&window, 1}, rows, states);
    EXPECT_EQ(states, std::vector(kTokens, RowState::missing)) << step.step;
  }
  EXPECT_EQ(capturer->num_failed(), kind() == Kind::capture_only ? 0u : 3u);
  if (!by_request) return;
  capturer->end_request(1, RequestEnd::finished);
  const Routes routes = by_request->take(1, {0, 6 * kTokens}, kPatience);
  for (std::int64_t position = 0; position < 6 * kTokens; ++position) {
    const auto step = static_cast<Step>(position / kTokens + 1);
    const bool lost = step == 2 || step == 4 || step == 5;
    ASSERT_EQ(routes.state(position), lost ? RowState::missing : RowState::present) << position;
    if (lost) continue;
    const auto row = routes.row(position);
    ASSERT_EQ(std::vector(row.begin(), row.end()), kRouter.row(step, position % kTokens));
  }
}

// Many in a row, of a worker that hears nothing from its scheduler: they take no room, and no time.
TEST_P(GivenUpStepOn, NeedsNoScheduler) {  // H37, H14
  capturer.reset();
  endpoint.timeout = Milliseconds(kind() == Kind::per_request ? 20'000 : 20);
  make();
  const std::vector<ScenarioStep> steps = plain_steps(7);
  for (int i = 0; i < 3; ++i) run(steps[static_cast<std::size_t>(i)]);
  for (Step step = 4; step <= 40; ++step) {
    ScenarioStep lost = steps[step.value() % 7];
    lost.step = step;
    lose(lost, 2);
  }
  if (kind() != Kind::per_request) {  // which may have filled its ring with what it tells of them
    ScenarioStep last = steps[3];
    last.step = 41;
    run(last);
  }
  EXPECT_EQ(capturer->num_failed(), kind() == Kind::capture_only ? 0u : 37u);
  EXPECT_EQ(capturer->dropped().count, capturer->dropped().given_up) << "none for want of room";
}

// The step was sampled from and the engine goes on, but its rows could not be published. What an
// earlier step left in its slots (a draft that was rejected) must not be taken for its rows, even
// by a reader that keeps windows by hand.
TEST_P(GivenUpStepOn, LeavesNoOlderRowsForItsOwn) {
  if (kind() == Kind::per_request || kind() == Kind::capture_only) GTEST_SKIP() << "no slots";
  const std::vector<ScenarioStep> steps = plain_steps(2);
  auto reader = std::make_unique<Reader>(kind() == Kind::shm ? make_shm_reader(endpoint)
                                                             : make_device_reader(endpoint));
  run(steps[0]);
  {
    model.route(2, kTokens, *stream);
    StepGuard open(*capturer, info(2), *stream);
    capture(5);
    const Slot* const same = slots_of(steps[0]);
    stream->begin_capture();  // what no step can be published on
    EXPECT_THROW(open.publish(same), StateError);
    (void)stream->end_capture();
  }
  capturer->finalize(2, kPatience);
  EXPECT_THROW(reader->wait_for(2, kPatience), StepFailed);
  std::vector<std::byte> rows(kTokens * kRouter.shape.row_bytes());
  std::vector<RowState> states(kTokens);
  const StepWindow window{1, 2};
  reader->read(steps[0].slots, {&window, 1}, rows, states);
  EXPECT_EQ(states, std::vector(kTokens, RowState::missing));
  ScenarioStep next = steps[1];
  next.step = 3;
  run(next);
  capturer->finalize(3, kPatience);
  reader->wait_for(3, kPatience);
  const Scenario scenario(kRouter, {next});
  expect_rows(*reader, scenario, next);
}

// As above, of a step whose slots are not known: its forward pass threw, or its slot mapping is
// none. Rows that the step did not write may go with them in such a window; by its one step each is
// there.
TEST_P(GivenUpStepOn, LeavesNoOlderRowsWhereNobodyKnowsItsSlots) {  // H37
  if (kind() == Kind::per_request || kind() == Kind::capture_only) GTEST_SKIP() << "no slots";
  const std::vector<ScenarioStep> steps = plain_steps(2);
  auto reader = std::make_unique<Reader>(kind() == Kind::shm ? make_shm_reader(endpoint)
                                                             : make_device_reader(endpoint));
  const auto states_in = [&](StepWindow window) {
    std::vector<std::byte> rows(kTokens * kRouter.shape.row_bytes());
    std::vector<RowState> states(kTokens);
    reader->read(steps[0].slots, {&window, 1}, rows, states);
    return states;
  };
  const auto publish_with = [&](Step step, Slot bad) {
    ScenarioStep wrong = steps[1];
    wrong.step = step;
    wrong.slots[0] = bad;
    run(wrong);
  };
  const std::vector missing(kTokens, RowState::missing);
  const std::vector present(kTokens, RowState::present);
  Step step = 0;
  const auto expect_lost = [&](auto&& lose_step) {
    ScenarioStep good = steps[0];
    good.step = ++step;
    run(good);
    capturer->finalize(step, kPatience);
    reader->wait_for(step, kPatience);
    EXPECT_THROW(states_in({step, step + 1}), StateError) << "before anybody knows";
    lose_step(step + 1);
    capturer->finalize(step + 1, kPatience);
    EXPECT_THROW(reader->wait_for(step + 1, kPatience), StepFailed);
    EXPECT_EQ(states_in({step, step + 1}), missing);
    EXPECT_EQ(states_in({step + 1, step + 1}), missing);
    EXPECT_EQ(states_in({}), missing);
    EXPECT_EQ(states_in({step, step}), present);
    ++step;
  };
  expect_lost([&](Step lost) {  // H37: its forward pass throws
    ScenarioStep thrown = steps[1];
    thrown.step = lost;
    lose(thrown, 3);
  });
  expect_lost([&](Step lost) { publish_with(lost, Slot(Scenario::kSlots)); });
  expect_lost([&](Step lost) { publish_with(lost, steps[1].slots[1]); });  // twice
  expect_lost([&](Step lost) {  // nor can they be had, since the stream records a graph
    StepGuard open(*capturer, info(lost), *stream);
    capture(5);
    stream->synchronize();
    const Slot* const same = slots_of(steps[0]);
    stream->synchronize();
    stream->begin_capture();
    EXPECT_THROW(open.publish(same), StateError);
    capturer->give_up(same, *stream);
    (void)stream->end_capture();
  });
}

// The row of a draft that was rejected, at a position that is computed again in the step that
// throws.
TEST_P(GivenUpStepOn, TakesAwayWhatItsWorkerKeptOfItsPositions) {
  if (kind() != Kind::per_request) GTEST_SKIP() << "of the cache by request";
  RequestReader reader(make_request_reader(endpoint));
  const std::vector<ScenarioStep> steps = plain_steps(3);
  run(steps[0]);
  spans = {{1, 4, kTokens}};
  lose(steps[1], 5);
  capturer->end_request(1, RequestEnd::finished);
  capturer->finalize(2, kPatience);
  const Routes routes = reader.take(1, {0, 12}, kPatience);
  for (std::int64_t position = 0; position < 12; ++position) {
    EXPECT_EQ(routes.state(position), position < 4 ? RowState::present : RowState::missing);
  }
}

// A first sink is refused in an open step only: not after one that is over.
TEST_P(GivenUpStepOn, NorOneOfWhichNothingIsWantedKeepsALayerFromGettingASink) {
  const std::span<const TokenRange> none;
  StepInfo nothing = info(1);
  nothing.wanted = none;
  RouteSink sink{};
  {
    StepGuard open(*capturer, nothing, *stream);
    capture(5);
    EXPECT_THROW(capturer->route_sink(0, sink), StateError);
    open.publish(nullptr);
  }
  EXPECT_NO_THROW(capturer->route_sink(0, sink));
  lose(plain_steps(2)[1], 5);
  EXPECT_NO_THROW(capturer->route_sink(1, sink));
}

}  // namespace
}  // namespace moetap::test
