// The device transport whose worker keeps the rows by request (HostCache::per_request).
#include <moetap/error.h>
#include <moetap/read_transport.h>
#include <moetap/reader.h>
#include <moetap/transport.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <set>
#include <string>
#include <thread>

#include "ipc/internal/names.h"
#include "ipc/internal/ring.h"
#include "ipc/internal/segment.h"
#include "test/gpu/devices.h"
#include "test/gpu/engine.h"
#include "test/gpu/request_scenario.h"
#include "test/ipc/child_process.h"
#include "test/ipc/message_of.h"
#include "test/ipc/test_endpoint.h"

namespace moetap::test {
namespace {

constexpr Milliseconds kPatience{20'000};

class RequestTransport : public EndpointTest {
 protected:
  explicit RequestTransport(const ModelShape& shape = ModelShape::uniform(5, 8, 128)) {
    endpoint.shape = shape;
    endpoint.num_slots = Scenario::kSlots;
    endpoint.max_tokens = Scenario::kMaxTokens;
    endpoint.timeout = kPatience;
  }

  std::unique_ptr<Transport> transport(Device& device, Drafts drafts = Drafts::tree) const {
    return make_device_transport(device, endpoint,
                                 {.host_cache = HostCache::per_request, .drafts = drafts});
  }

  void expect_request(RequestReader& reader, const RequestScenario::Finished& finished) {
    SCOPED_TRACE(::testing::Message() << "request " << finished.request);
    const auto size = static_cast<std::int64_t>(finished.rows.size());
    const Routes routes = reader.take(finished.request, {0, size}, kPatience);
    for (std::int64_t position = 0; position < size; ++position) {
      const auto& expected = finished.rows[static_cast<std::size_t>(position)];
      ASSERT_EQ(routes.state(position), expected ? RowState::present : RowState::missing)
          << position;
      if (!expected) continue;
      const auto row = routes.row(position);
      ASSERT_TRUE(std::equal(row.begin(), row.end(), expected->begin())) << position;
    }
  }
};

class RequestTransportEndToEnd : public RequestTransport,
                                 public ::testing::WithParamInterface<DeviceMaker> {
 protected:
  // Every other device with weights.
  RequestTransportEndToEnd()
      : RequestTransport(ModelShape::uniform(5, 8, 128).with_weights(
            GetParam().seed % 2 == 0 ? WeightType::float32 : WeightType::none)),
        scenario(GetParam().seed + 7, {.shape = endpoint.shape, .missing_routes = true}) {}

  void run_worker() {
    const auto device = GetParam()();
    Engine engine(*device, scenario.scenario, transport(*device, Drafts::chain), {});
    std::set<Step> troubled;
    for (std::size_t i = 0; i < scenario.ends.size(); ++i) {
      const ScenarioStep& step = scenario.scenario.steps[i];
      engine.run(step);
      if (step.fails()) troubled.insert(step.step);
      // At once, with the step still on its way: a caller that takes the rows must wait for them.
      for (const auto& [request, how] : scenario.ends[i]) engine.end_request(request, how);
    }
    engine.finish();
    EXPECT_EQ(engine.failed(), troubled);
    all_taken.wait();
  }

  void run_scheduler() {
    RequestReader reader(make_request_reader(endpoint));
    std::vector<RequestId> never_asked;
    for (const auto& finished : scenario.finished) {
      if (finished.asked) {
        expect_request(reader, finished);
      } else {
        never_asked.push_back(finished.request);
      }
    }
    EXPECT_FALSE(never_asked.empty());
    for (const RequestId request : never_asked) {
      EXPECT_THROW(reader.take(request, {0, 1}, Milliseconds(0)), TimeoutError) << request;
    }
    // A step of which nothing was wanted has no outcome, the next one stands for it.
    std::vector<ScenarioStep> steps = scenario.scenario.steps;
    while (!steps.back().wants_any()) steps.pop_back();
    for (const ScenarioStep& step : steps) {
      if (!step.fails()) {
        EXPECT_NO_THROW(reader.wait_for(step.step, kPatience)) << step.step;
      } else {
        EXPECT_THROW(reader.wait_for(step.step, kPatience), StepFailed) << step.step;
      }
    }
    all_taken.raise();
  }

  RequestScenario scenario;
  Signal all_taken;
};
INSTANTIATE_TEST_SUITE_P(Devices, RequestTransportEndToEnd, ::testing::ValuesIn(every_device()),
                         device_name);

// The worker is the process that tests before this one ran in: CUDA does not survive a fork.
TEST_P(RequestTransportEndToEnd, EveryRowIsExactOrMissing) {  // H9, H10, H17
  ASSERT_GT(scenario.finished.size(), 10u);
  ChildProcess scheduler([this] { run_scheduler(); });
  run_worker();
  EXPECT_EQ(scheduler.join(), 0);
}

// Plain steps whose tokens all are one request's, 8 a step.
std::vector<ScenarioStep> steps_of_one_request(int count) {
  std::vector<ScenarioStep> steps = plain_steps(std::min(count, 7));
  while (static_cast<int>(steps.size()) < count) {
    steps.push_back(steps[steps.size() % 7]);
    steps.back().step = Step(steps.size());
  }
  for (ScenarioStep& step : steps) {
    step.requests = {{1, (step.step - Step(1)) * 8, 8}};
  }
  return steps;
}

RequestScenario::Finished all_rows(const Scenario& scenario) {
  RequestScenario::Finished finished{.request = 1, .rows = {}};
  for (const ScenarioStep& step : scenario.steps) {
    for (int row = 0; row < 8; ++row) finished.rows.push_back(scenario.router.row(step.step, row));
  }
  return finished;
}

class RequestTransportOn : public RequestTransport,
                           public ::testing::WithParamInterface<DeviceMaker> {};
INSTANTIATE_TEST_SUITE_P(Devices, RequestTransportOn, ::testing::ValuesIn(every_device()),
                         device_name);

TEST_P(RequestTransportOn, FullRingIsAnErrorThatLosesNothing) {  // H14
  endpoint.timeout = Milliseconds(1000);  // also for the device, which is not to be late
  const Scenario scenario(Router{endpoint.shape}, steps_of_one_request(20));
  const auto device = GetParam()();
  Engine engine(*device, scenario, transport(*device), {});
  RequestReader reader(make_request_reader(endpoint));
  // Four steps are announced in the ring, four wait in host memory.
  std::size_t next = 0;
  const std::string full = message_of<TimeoutError>([&] {
    for (; next < 20; ++next) engine.run(scenario.steps[next]);
  });
  EXPECT_EQ(next, 8u);
  EXPECT_TRUE(contains(full, "4 wait for the scheduler, the oldest is of step 1")) << full;

  reader.wait_for(4, kPatience);
  engine.publish(scenario.steps[next]);
  while (++next < 20) {
    reader.wait_for(Step(next - 4), kPatience);
    engine.run(scenario.steps[next]);
  }
  while (reader.poll() < 16) engine.stream().idle();  // which runs a seeded device's work
  engine.finish();
  engine.end_request(1, RequestEnd::finished);
  expect_request(reader, all_rows(scenario));
}

TEST_P(RequestTransportOn, EndsAlthoughTheSchedulerReadsNothing) {
  const Scenario scenario(Router{endpoint.shape}, steps_of_one_request(8));
  const auto device = GetParam()();
  Engine engine(*device, scenario, transport(*device), {});
  for (const ScenarioStep& step : scenario.steps) engine.run(step);
  engine.end_request(1, RequestEnd::finished);
}

TEST_P(RequestTransportOn, FinalizeWaitsUntilFinishedRequestsAreHandedOver) {
  const Scenario scenario(Router{endpoint.shape}, steps_of_one_request(4));
  const auto device = GetParam()();
  Engine engine(*device, scenario, transport(*device), {});
  RequestReader reader(make_request_reader(endpoint));
  for (const ScenarioStep& step : scenario.steps) engine.run(step);
  engine.finish();  // the four steps fill the ring
  engine.end_request(1, RequestEnd::finished);
  const std::string full = message_of<TimeoutError>([&] { engine.finish(Milliseconds(150)); });
  EXPECT_TRUE(contains(full, "4 wait for the scheduler")) << full;
  reader.wait_for(4, kPatience);
  engine.finish();
  // Nothing else has to happen on the worker's side.
  EXPECT_EQ(reader.take(1, {0, 32}, Milliseconds(0)).count(RowState::present), 32u);
}

TEST_P(RequestTransportOn, OnlyARequestThatAskedHandsAnythingOver) {
  std::vector<ScenarioStep> steps = plain_steps(1);
  steps[0].requests = {{1, 0, 3}, {2, 0, 5}};
  steps[0].wanted = std::vector<TokenRange>{{0, 3}};
  const Scenario scenario(Router{endpoint.shape}, steps);
  const auto device = GetParam()();
  Engine engine(*device, scenario, transport(*device), {});
  RequestReader reader(make_request_reader(endpoint));
  engine.run(steps[0]);
  engine.end_request(2, RequestEnd::finished);
  engine.end_request(1, RequestEnd::preempted);
  engine.end_request(1, RequestEnd::finished);  // has no rows any more, but may be taken
  engine.finish();
  EXPECT_EQ(reader.take(1, {0, 3}, kPatience).count(RowState::missing), 3u);
  const std::string never = message_of<TimeoutError>([&] {
    reader.take(2, {0, 5}, Milliseconds(0));
  });
  EXPECT_TRUE(contains(never, "request 2 (one that no step wanted a token of has none)")) << never;
}

// A at position 2, and B and C, alternatives for position 3, in places 2, 3 and 4. A and C stand,
// so that the next span begins at position 4.
TEST_P(RequestTransportOn, OfATreeThatNobodyDeclaredOnlyTheFirstTokenHasARow) {  // H30
  std::vector<ScenarioStep> steps = plain_steps(2);
  steps[0].requests = {{1, 2, 3}, {2, 2, 3}, {9, 0, 2}};
  steps[1].requests = {{1, 4, 1}, {9, 2, 7}};
  const Scenario scenario(Router{endpoint.shape}, steps);
  const auto device = GetParam()();
  Engine engine(*device, scenario, transport(*device), {});
  RequestReader reader(make_request_reader(endpoint));
  for (const ScenarioStep& step : steps) engine.run(step);
  engine.finish();
  engine.end_request(1, RequestEnd::finished);
  engine.end_request(2, RequestEnd::finished);  // its next span would have begun at 4, too
  const Router& router = scenario.router;
  expect_request(reader, {.request = 1, .rows = {{}, {}, router.row(1, 0), {}, router.row(2, 0)}});
  expect_request(reader, {.request = 2, .rows = {{}, {}, router.row(1, 3), {}}});
}

// The same, declared: each request is accepted at another time.
TEST_P(RequestTransportOn, OfATreeTheRowsOfThoseThatStand) {  // H30
  std::vector<ScenarioStep> steps = plain_steps(3);
  steps[0].requests = {{1, 2, 3, 2}, {2, 2, 3, 2}, {3, 0, 2}};
  steps[1].requests = {{1, 4, 3, 2}, {2, 4, 3, 2}, {3, 2, 2, 1}};
  steps[2].requests = {{1, 5, 3, 2}, {2, 5, 5, 4}};
  const Scenario scenario(Router{endpoint.shape}, steps);
  const auto device = GetParam()();
  Engine engine(*device, scenario, transport(*device), {});
  RequestReader reader(make_request_reader(endpoint));
  const auto accept = [&](Step step, RequestId request, std::int64_t tokens,
                          std::vector<std::int64_t> accepted) {
    engine.capturer().accept(step, request, tokens, accepted);
  };
  engine.run(steps[0]);
  accept(1, 1, 5, {0, 2});
  accept(1, 3, 3, {0, 1});  // a prompt, of which there is nothing to tell
  engine.begin(steps[1]);
  accept(2, 1, 6, {0});  // before it is published
  engine.publish(steps[1]);
  engine.run(steps[2]);
  accept(1, 2, 5, {0, 2});  // with two more in flight
  accept(2, 2, 6, {0, 1});  // one token more than stands
  accept(3, 2, 9, {0, 3, 4});
  engine.finish();
  for (const RequestId request : {RequestId(1), RequestId(2), RequestId(3)})
    engine.end_request(request, RequestEnd::finished);
  const Router& router = scenario.router;
  expect_request(reader, {.request = 1,
                          .rows = {{},
                                   {},
                                   router.row(1, 0),
                                   router.row(1, 2),
                                   router.row(2, 0),
                                   router.row(3, 0),
                                   {},
                                   {}}});
  expect_request(reader, {.request = 2,
                          .rows = {{},
                                   {},
                                   router.row(1, 3),
                                   router.row(1, 5),
                                   router.row(2, 3),
                                   router.row(3, 3),
                                   router.row(3, 6),
                                   router.row(3, 7)}});
  expect_request(
      reader, {.request = 3, .rows = {router.row(1, 6), router.row(1, 7), router.row(2, 6), {}}});
}

TEST_P(RequestTransportOn, AnAcceptThatCannotBeIsRefusedAndChangesNothing) {
  std::vector<ScenarioStep> steps = plain_steps(1);
  steps[0].requests = {{1, 2, 5, 3}, {2, 0, 3}};
  const Scenario scenario(Router{endpoint.shape}, steps);
  const auto device = GetParam()();
  Engine engine(*device, scenario, transport(*device), {});
  RequestReader reader(make_request_reader(endpoint));
  engine.run(steps[0]);
  const auto refused = [&]<class Error>(Step step, RequestId request, std::int64_t tokens,
                                        std::vector<std::int64_t> accepted, const char* why) {
    const std::string message =
        message_of<Error>([&] { engine.capturer().accept(step, request, tokens, accepted); });
    EXPECT_TRUE(contains(message, why)) << message;
  };
  refused.operator()<ArgumentError>(1, 1, 6, {0, 1}, "3 tokens stand from position 2 on");
  refused.operator()<RangeError>(1, 1, 6, {0, 1, 5}, "token 5");
  refused.operator()<ArgumentError>(1, 1, 7, {0, 1, 3, 3}, "comes twice");
  refused.operator()<ArgumentError>(1, 1, 6, {0, 3, 4}, "begin at token 2");
  refused.operator()<StateError>(2, 1, 6, {0, 2}, "num_drafts");
  refused.operator()<StateError>(1, 2, 4, {1, 0}, "num_drafts");
  engine.capturer().accept(1, 1, 6, std::vector<std::int64_t>{0, 1, 4});
  refused.operator()<StateError>(1, 1, 6, {0, 1, 3}, "once");
  engine.finish();
  engine.end_request(1, RequestEnd::finished);
  const Router& router = scenario.router;
  expect_request(reader, {.request = 1,
                          .rows = {{}, {}, router.row(1, 0), router.row(1, 1), router.row(1, 4)}});
}

// Of a step that was given up nothing can stand, but later ones go on.
TEST_P(RequestTransportOn, ATreeOfAStepThatWasGivenUpHasNoRows) {
  std::vector<ScenarioStep> steps = plain_steps(2);
  steps[0].requests = {{1, 2, 8, 7}};
  steps[1].requests = {{1, 4, 8, 7}};
  const Scenario scenario(Router{endpoint.shape}, steps);
  const auto device = GetParam()();
  Engine engine(*device, scenario, transport(*device), {});
  RequestReader reader(make_request_reader(endpoint));
  engine.begin(steps[0]);
  engine.capturer().accept(1, 1, 5, std::vector<std::int64_t>{0, 5});
  engine.capturer().give_up(nullptr, engine.stream());
  engine.run(steps[1]);
  engine.capturer().accept(2, 1, 7, std::vector<std::int64_t>{0, 7});
  engine.finish();
  engine.end_request(1, RequestEnd::finished);
  const Router& router = scenario.router;
  expect_request(reader,
                 {.request = 1, .rows = {{}, {}, {}, {}, router.row(2, 0), router.row(2, 7)}});
}

// An aborted one would be made anew by the step's rows, and never go.
TEST_P(RequestTransportOn, ARequestThatEndsInsideAStepHasThatStepsRows) {
  const Scenario scenario(Router{endpoint.shape}, steps_of_one_request(2));
  const auto device = GetParam()();
  Engine engine(*device, scenario, transport(*device), {});
  RequestReader reader(make_request_reader(endpoint));
  engine.run(scenario.steps[0]);
  engine.begin(scenario.steps[1]);
  engine.end_request(1, RequestEnd::finished);
  engine.publish(scenario.steps[1]);
  engine.finish();
  expect_request(reader, all_rows(scenario));
}

TEST_F(RequestTransport, ABrokenRingIsAnErrorLongBeforeTheTimeLimit) {
  const Scenario scenario(Router{endpoint.shape}, steps_of_one_request(1));
  const auto device = make_host_device();
  Engine engine(*device, scenario, transport(*device), {});
  const Segment ring = Segment::open(ring_name(endpoint));
  Ring(ring.bytes(), endpoint).control().released = 1'000'000;
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THROW(
      {
        engine.run(scenario.steps[0]);
        engine.finish(2 * kPatience);
      },
      MismatchError);
  EXPECT_LT(std::chrono::steady_clock::now() - start, kPatience);
}

TEST_F(RequestTransport, DeviceThatIsBehindIsAnErrorThatBlamesIt) {
  endpoint.timeout = Milliseconds(30);
  const Scenario scenario(Router{endpoint.shape}, steps_of_one_request(5));
  const auto device = make_host_device();
  Engine engine(*device, scenario, transport(*device), {});
  std::atomic<bool> go{false};
  engine.stream().call(
      [](void* flag) {
        while (!static_cast<std::atomic<bool>*>(flag)->load()) std::this_thread::yield();
      },
      &go);
  for (int i = 0; i < 4; ++i) engine.run(scenario.steps[i]);
  const std::string late = message_of<TimeoutError>([&] { engine.run(scenario.steps[4]); });
  go = true;
  EXPECT_TRUE(contains(late, "of 4 published steps 0 are in the worker's cache")) << late;
  EXPECT_TRUE(contains(late, "the device is late")) << late;
}

TEST_F(RequestTransport, StepMustSayWhoseItsTokensAre) {
  const auto device = make_host_device();
  const auto worker = transport(*device);
  const RequestSpan some{.request = 1, .position = 0, .count = 3};
  const StepInfo step{.step = 1, .num_tokens = 4, .dp_tokens = {}, .requests = {&some, 1}};
  const std::string message = message_of<ArgumentError>([&] { worker->begin(step); });
  EXPECT_TRUE(contains(message, "3 tokens of 4")) << message;
}

}  // namespace
}  // namespace moetap::test
