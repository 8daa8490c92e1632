// Kernels of an engine's that capture their own picks, and do it wrong: what readers get.
#include <moetap/capturer.h>
#include <moetap/error.h>
#include <moetap/read_transport.h>
#include <moetap/reader.h>
#include <moetap/route_sink.h>
#include <moetap/topk_ids.h>
#include <moetap/transport.h>

#include <numeric>
#include <string>
#include <vector>

#include "gpu/internal/device_cache.h"
#include "test/gpu/device_test.h"
#include "test/gpu/model.h"
#include "test/gpu/picks_kernels.h"
#include "test/ipc/message_of.h"
#include "test/ipc/test_endpoint.h"

namespace moetap::test {
namespace {

constexpr std::int64_t kTokens = 20;
constexpr Milliseconds kPatience{20'000};

Endpoint with_shape(Endpoint endpoint, WeightType weights) {
  endpoint.shape = ModelShape({3}, 3, 200).with_weights(weights);
  endpoint.max_tokens = kTokens;
  endpoint.timeout = kPatience;
  return endpoint;
}

// An engine with one layer, whose router has a sink.
class SinkEngine {
 public:
  SinkEngine(Device& device, const Endpoint& endpoint, int shared = 0, bool with_sink = true)
      : stream(device.make_stream()),
        router{endpoint.shape},
        model(device, router, kTokens),
        capturer(make_shm_transport(device, endpoint), {.shared_expert_columns = shared}),
        reader(make_shm_reader(endpoint)) {
    capturer.bind(3);
    if (with_sink) take_sink();
    std::vector<Slot> slots(kTokens);
    std::iota(slots.begin(), slots.end(), Slot(0));
    slot_mapping = upload(device, *stream, slots);
  }

  void take_sink() { capturer.route_sink(3, sink); }
  // The kernel of a step that does everything right.
  SinkPicks good(std::int64_t tokens) const {
    const TopkIds ids = model.topk_ids(0, tokens);
    return {.topk_ids = static_cast<const std::int32_t*>(ids.data),
            .rows = tokens,
            .columns = ids.columns,
            .sink = sink,
            .weight_type = ids.weights.type,
            .weights = ids.weights.type == WeightType::none ? nullptr : ids.weights.data};
  }
  void begin(Step step, std::int64_t tokens) {
    model.route(step, tokens, *stream);
    capturer.begin_step({.step = step, .num_tokens = tokens}, *stream);
  }
  // Throws the failure, if there is one.
  void publish() {
    capturer.publish(slot_mapping.as<const Slot>(), *stream);
    for (const StepFailed& failure : capturer.take_failures()) throw failure;
  }
  void run(Step step, const SinkPicks& kernel) {
    begin(step, kernel.rows);
    stream->launch(kernel, 1);
    publish();
  }
  std::string failure(Step step, const SinkPicks& kernel) {
    return message_of<StepFailed>([&] { run(step, kernel); });
  }

  // That a step's rows are exact, but for token `missing`, whose is missing.
  void expect_rows(Step step, std::int64_t tokens, std::int64_t missing = -1) {
    const ModelShape& shape = router.shape;
    std::vector<Slot> slots(static_cast<std::size_t>(tokens));
    std::iota(slots.begin(), slots.end(), Slot(0));
    std::vector<std::byte> rows(slots.size() * shape.row_bytes());
    std::vector<RowState> states(slots.size());
    const StepWindow window{step, step};
    reader.wait_for(step, kPatience);
    reader.read(slots, {&window, 1}, rows, states);
    for (std::int64_t token = 0; token < tokens; ++token) {
      const auto i = static_cast<std::size_t>(token);
      EXPECT_EQ(states[i], token == missing ? RowState::missing : RowState::present) << token;
      if (token == missing) continue;
      const auto row = std::span(rows).subspan(i * shape.row_bytes(), shape.row_bytes());
      EXPECT_EQ(std::vector(row.begin(), row.end()), router.row(step, token)) << token;
    }
  }

  std::unique_ptr<Stream> stream;
  Router router;
  Model model;
  Capturer capturer;
  Reader reader;
  RouteSink sink{};
  Buffer slot_mapping;
};

class RouteSinkOn : public EndpointTest, public ::testing::WithParamInterface<DeviceMaker> {
 protected:
  std::unique_ptr<Device> device = GetParam()();
};
INSTANTIATE_TEST_SUITE_P(Devices, RouteSinkOn, ::testing::ValuesIn(every_device()), device_name);

constexpr WeightType kWeights[] = {WeightType::none, WeightType::float32, WeightType::bfloat16};

TEST_P(RouteSinkOn, DropsThePicksOfDeclaredSharedExperts) {  // H27
  for (const WeightType weights : kWeights) {
    SCOPED_TRACE(weight_type_name(weights));
    SinkEngine engine(*device, with_shape(endpoint, weights), 2);
    for (const std::int64_t tokens : {20, 13}) {  // as many as fit the cache, and fewer
      const Step step(tokens == 20 ? 1 : 2);
      SinkPicks kernel = engine.good(tokens);
      kernel.shared = 2;
      engine.run(step, kernel);
      engine.expect_rows(step, tokens);
    }
  }
}

TEST_P(RouteSinkOn, FailsAStepWithPicksThatNobodyDeclared) {  // H27
  for (const WeightType weights : kWeights) {
    SCOPED_TRACE(weight_type_name(weights));
    SinkEngine engine(*device, with_shape(endpoint, weights), 2);
    SinkPicks kernel = engine.good(20);
    kernel.shared = 3;
    EXPECT_TRUE(contains(engine.failure(1, kernel), "pick 5, but rows hold 3"));
    kernel.shared = 0;
    kernel.first_k = -1;
    EXPECT_TRUE(contains(engine.failure(2, kernel), "pick -1, but rows hold 3"));
    engine.run(3, engine.good(20));
    engine.expect_rows(3, 20);
  }
}

TEST_P(RouteSinkOn, APickThatNobodyPutIsMissingAndNoOlderStepsOne) {
  for (const WeightType weights : kWeights) {
    SCOPED_TRACE(weight_type_name(weights));
    SinkEngine engine(*device, with_shape(endpoint, weights));
    SinkPicks kernel = engine.good(20);
    engine.run(1, kernel);
    engine.expect_rows(1, 20);
    Step step = 1;
    for (const std::int64_t left_out : {7, 0, 19}) {
      ++step;
      kernel.left_out = left_out;
      engine.run(step, kernel);
      engine.expect_rows(step, 20, left_out);
    }
  }
}

TEST_P(RouteSinkOn, FailsAStepWithAnExpertThatWasPutTwice) {  // H32
  for (const WeightType weights : kWeights) {
    SCOPED_TRACE(weight_type_name(weights));
    SinkEngine engine(*device, with_shape(endpoint, weights));
    for (const int k : {0, 1}) engine.model.spoil(0, 12, k, 5);
    EXPECT_TRUE(contains(engine.failure(1, engine.good(20)),
                         "layer 3, token 12: expert id 5 was picked twice"));
    engine.run(2, engine.good(20));
    engine.expect_rows(2, 20);
  }
}

TEST_P(RouteSinkOn, IsHeldToItFromTheStepInWhichItIsTaken) {
  SinkEngine engine(*device, with_shape(endpoint, WeightType::none), 0, false);
  engine.begin(1, 20);
  engine.take_sink();  // as engines do in the padded layout
  SinkPicks kernel = engine.good(20);
  kernel.left_out = 5;
  engine.stream->launch(kernel, 1);
  engine.publish();
  engine.expect_rows(1, 20, 5);
}

TEST_P(RouteSinkOn, IsNotHadInAStepWhereOlderPicksLie) {
  SinkEngine engine(*device, with_shape(endpoint, WeightType::none), 0, false);
  const auto capture = [&](Step step) {
    engine.begin(step, 20);
    engine.capturer.capture(3, engine.model.topk_ids(0, 20), *engine.stream);
  };
  capture(1);
  const std::string message = message_of<StateError>([&] { engine.take_sink(); });
  EXPECT_TRUE(contains(message, "layer 3: the first sink")) << message;
  engine.publish();
  engine.expect_rows(1, 20);
  engine.take_sink();
  SinkPicks kernel = engine.good(20);
  kernel.left_out = 5;
  engine.run(2, kernel);
  engine.expect_rows(2, 20, 5);
  capture(3);  // a layer may come in both ways
  engine.publish();
  engine.expect_rows(3, 20);
}

TEST_P(RouteSinkOn, FailsAStepWhoseWeightsWereForgotten) {
  for (const WeightType weights : {WeightType::float32, WeightType::bfloat16}) {
    SinkEngine engine(*device, with_shape(endpoint, weights));
    engine.run(1, engine.good(20));
    SinkPicks kernel = engine.good(20);
    kernel.weights = nullptr;  // though it begins with them
    EXPECT_TRUE(contains(engine.failure(2, kernel), "captured with no weights"));
  }
}

TEST(RouteSink, IsRefusedWhereEveryBitPatternIsAnExpert) {  // H21
  const auto device = make_host_device();
  DeviceCache most(*device, ModelShape({3}, 2, 65'535), 4, "most/0");
  EXPECT_NO_THROW(most.sink(0, 0, DeviceCache::kAllRows));
  DeviceCache cache(*device, ModelShape({3}, 2, 65'536), 4, "all/0");
  const std::string message =
      message_of<ArgumentError>([&] { cache.sink(0, 0, DeviceCache::kAllRows); });
  EXPECT_TRUE(contains(message, "layer 3: a sink for 65536 experts")) << message;
}

// A launch of any kernel over one layer in plain memory.
struct PlainLayer {
  explicit PlainLayer(WeightType type) {
    step.step = 7;
    step.num_tokens = 4;
    sink = {.step = &step,
            .captured = &captured,
            .missing_step = missing.data(),
            .routes = routes.data(),
            .first_row = 0,
            .end_row = 4,
            .layer = 0,
            .top_k = 2,
            .num_experts = 9,
            .weight_type = type,
            .weights = weights.data()};
  }
  bool untouched() const {
    return routes == std::vector<std::uint16_t>(8, 0xEEEE) && weights == std::vector<float>(8, -1);
  }

  DeviceStep step;
  std::uint64_t captured = 0;
  std::vector<std::uint64_t> missing = std::vector<std::uint64_t>(4);
  std::vector<std::uint16_t> routes = std::vector<std::uint16_t>(8, 0xEEEE);
  std::vector<float> weights = std::vector<float>(8, -1);
  RouteSink sink{};
};

TEST(RouteWriter, WritesNothingOfAPickWhoseWeightRowsDoNotHold) {
  const auto faults = [](WeightType type, auto put) {
    PlainLayer layer(type);
    put(RouteWriter(layer.sink));
    return layer.step.fault == static_cast<std::uint32_t>(DeviceFault::weights) &&
           layer.untouched();
  };
  const auto none = [](const RouteWriter& routes) { routes.put(1, 1, 5); };
  const auto wide = [](const RouteWriter& routes) { routes.put(1, 1, 5, 0.5F); };
  const auto half = [](const RouteWriter& routes) { routes.put(1, 1, 5, BFloat16{0x3F00}); };
  EXPECT_TRUE(faults(WeightType::float32, none));
  EXPECT_TRUE(faults(WeightType::bfloat16, none));
  EXPECT_TRUE(faults(WeightType::float32, half));
  EXPECT_TRUE(faults(WeightType::none, wide));
  EXPECT_TRUE(faults(WeightType::none, half));
  EXPECT_FALSE(faults(WeightType::none, none));
  EXPECT_FALSE(faults(WeightType::float32, wide));
  EXPECT_FALSE(faults(WeightType::bfloat16, wide));
  EXPECT_FALSE(faults(WeightType::bfloat16, half));
}

}  // namespace
}  // namespace moetap::test
