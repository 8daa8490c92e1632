// Models whose layers tell their picks in every way, bound with one call, from router to reader.
#include <moetap/bind.h>
#include <moetap/error.h>
#include <moetap/read_transport.h>
#include <moetap/reader.h>
#include <moetap/topk_ids.h>
#include <moetap/transport.h>

#include <numeric>
#include <string>
#include <vector>

#include "test/gpu/device_test.h"
#include "test/gpu/model.h"
#include "test/gpu/picks_kernels.h"
#include "test/ipc/message_of.h"
#include "test/ipc/test_endpoint.h"

namespace moetap::test {
namespace {

constexpr std::int64_t kTokens = 20;
const ModelShape kShape({2, 3, 7}, 4, 300);  // modular, capturing, fused

// An engine with such a model.
class MixedEngine {
 public:
  MixedEngine(Device& device, std::unique_ptr<Transport> transport, CapturerOptions options = {})
      : stream(device.make_stream()),
        router{kShape},
        model(device, router, kTokens),
        capturer(std::move(transport), options) {
    std::vector<Slot> slots(kTokens);
    std::iota(slots.begin(), slots.end(), Slot(0));
    slot_mapping = upload(device, *stream, slots);
  }

  std::vector<MoeLayer> layers() {
    return {
        {2, ModularRouter{[this](auto capture) { capture_2 = std::move(capture); }}},
        {3, CapturingRouter{[this](const RouteSink& given) { sink_3 = given; }}},
        {7, FusedKernel{"grouped_moe", [this](const RouteOutput& given) { output_7 = given; }}}};
  }

  void forward(std::int64_t rows, std::int64_t fused_rows) { forward(rows, rows, fused_rows); }
  void forward(std::int64_t rows, std::int64_t sink_rows, std::int64_t fused_rows) {
    capture_2(model.topk_ids(0, rows), *stream);
    stream->launch(SinkPicks{ids(1), sink_rows, kShape.top_k(), sink_3}, 1);
    if (fused_rows == 0) return;
    stream->launch(OutputPicks{ids(2), fused_rows, kShape.top_k(), output_7.data}, 1);
  }

  const std::int32_t* ids(int layer) const {
    return static_cast<const std::int32_t*>(model.topk_ids(layer, kTokens).data);
  }

  void begin(Step step, std::int64_t tokens, std::int64_t padded = 0) {
    model.route(step, tokens, *stream);
    capturer.begin_step({.step = step, .num_tokens = tokens, .padded_tokens = padded}, *stream);
  }
  // Throws the failure, if there is one.
  void publish() {
    capturer.publish(slot_mapping.as<const Slot>(), *stream);
    for (const StepFailed& failure : capturer.take_failures()) throw failure;
  }

  std::unique_ptr<Stream> stream;
  Router router;
  Model model;
  Capturer capturer;
  Buffer slot_mapping;
  ModularRouter::Capture capture_2;
  RouteSink sink_3{};
  RouteOutput output_7;
};

class BindOn : public EndpointTest, public ::testing::WithParamInterface<DeviceMaker> {
 protected:
  BindOn() {
    endpoint.shape = kShape;
    endpoint.max_tokens = kTokens;
    endpoint.timeout = Milliseconds(20'000);
  }

  // Rows [0, present) are the step's, rows [present, count) are missing.
  static void expect_rows(Reader& reader, const Router& router, Step step, std::int64_t present,
                          std::int64_t count) {
    std::vector<Slot> slots(static_cast<std::size_t>(count));
    std::iota(slots.begin(), slots.end(), Slot(0));
    std::vector<std::byte> rows(slots.size() * kShape.row_bytes());
    std::vector<RowState> states(slots.size());
    const StepWindow window{step, step};
    reader.wait_for(step, Milliseconds(20'000));
    reader.read(slots, {&window, 1}, rows, states);
    for (std::int64_t token = 0; token < count; ++token) {
      const auto i = static_cast<std::size_t>(token);
      EXPECT_EQ(states[i], token < present ? RowState::present : RowState::missing) << token;
      if (token >= present) continue;
      const auto row = std::span(rows).subspan(i * kShape.row_bytes(), kShape.row_bytes());
      EXPECT_EQ(std::vector(row.begin(), row.end()), router.row(step, token)) << token;
    }
  }

  std::unique_ptr<Device> device = GetParam()();
};
INSTANTIATE_TEST_SUITE_P(Devices, BindOn, ::testing::ValuesIn(every_device()), device_name);

TEST_P(BindOn, EveryWayOfTellingPicksGivesExactRows) {
  MixedEngine engine(*device, make_shm_transport(*device, endpoint));
  Reader reader(make_shm_reader(endpoint));
  bind_layers(engine.capturer, engine.layers());
  EXPECT_EQ(engine.output_7.rows, kTokens);
  EXPECT_EQ(engine.output_7.columns, kShape.top_k());
  Step step = 0;
  for (const std::int64_t tokens : {20, 1, 13, 20}) {
    engine.begin(++step, tokens);
    engine.forward(tokens, tokens);
    engine.publish();
    expect_rows(reader, engine.router, step, tokens, tokens);
  }
}

TEST_P(BindOn, EveryWayGoesIntoAGraph) {  // H2, H13
  MixedEngine engine(*device, make_shm_transport(*device, endpoint));
  Reader reader(make_shm_reader(endpoint));
  bind_layers(engine.capturer, engine.layers());
  std::unique_ptr<Graph> graph;
  {
    const GraphGuard recording(engine.capturer, 16);
    engine.stream->begin_capture();
    engine.forward(16, 16);
    graph = engine.stream->end_capture();
  }
  Step step = 0;
  for (const std::int64_t tokens : {16, 3, 9}) {
    engine.begin(++step, tokens, 16);
    engine.stream->launch(*graph);
    engine.publish();
    expect_rows(reader, engine.router, step, tokens, tokens);
  }
}

// Nothing stamps such a layer, and an older step's ids lie in the cache.
TEST_P(BindOn, AFusedKernelThatDidNotRunFailsTheStep) {  // H3
  MixedEngine engine(*device, make_shm_transport(*device, endpoint));
  Reader reader(make_shm_reader(endpoint));
  bind_layers(engine.capturer, engine.layers());
  engine.begin(1, 13);
  engine.forward(13, 13);
  engine.publish();
  expect_rows(reader, engine.router, 1, 13, 13);
  engine.begin(2, 13);
  engine.forward(13, 0);
  const std::string message = message_of<StepFailed>([&] { engine.publish(); });
  EXPECT_TRUE(contains(message, "layer 7 was not captured")) << message;
}

TEST_P(BindOn, ATokenThatAFusedKernelDidNotWriteIsMissing) {  // H3
  MixedEngine engine(*device, make_shm_transport(*device, endpoint));
  Reader reader(make_shm_reader(endpoint));
  bind_layers(engine.capturer, engine.layers());
  engine.begin(1, 20);
  engine.forward(20, 20);
  engine.publish();
  engine.begin(2, 20);
  engine.forward(20, 17);
  engine.publish();
  expect_rows(reader, engine.router, 2, 17, 20);
}

TEST_P(BindOn, AFusedKernelsIdOfNoExpertFailsTheStep) {  // H20
  MixedEngine engine(*device, make_shm_transport(*device, endpoint));
  bind_layers(engine.capturer, engine.layers());
  for (const std::int64_t id : {300, -2}) {
    engine.model.spoil(2, 6, 1, id);
    engine.begin(Step(id == 300 ? 1 : 2), 13);
    engine.forward(13, 13);
    const std::string message = message_of<StepFailed>([&] { engine.publish(); });
    EXPECT_TRUE(contains(message, "layer 7, token 6: expert id " + std::to_string(id))) << message;
  }
}

// As a buffer that the kernel never wrote, but something else did.
TEST_P(BindOn, AFusedKernelsExpertThatComesTwiceFailsTheStep) {  // H32
  MixedEngine engine(*device, make_shm_transport(*device, endpoint));
  bind_layers(engine.capturer, engine.layers());
  for (int k = 0; k < kShape.top_k(); ++k) engine.model.spoil(2, 6, k, 0);
  engine.begin(1, 13);
  engine.forward(13, 13);
  const std::string message = message_of<StepFailed>([&] { engine.publish(); });
  EXPECT_TRUE(contains(message, "layer 7, token 6: expert id 0 was picked twice")) << message;
}

TEST_P(BindOn, ASinkRefusesWhatACaptureRefuses) {  // H20, H2, H21
  MixedEngine engine(*device, make_shm_transport(*device, endpoint));
  Reader reader(make_shm_reader(endpoint));
  bind_layers(engine.capturer, engine.layers());
  engine.model.spoil(1, 6, 1, 300);
  engine.begin(1, 13);
  engine.forward(13, 13);
  std::string message = message_of<StepFailed>([&] { engine.publish(); });
  EXPECT_TRUE(contains(message, "layer 3, token 6: expert id 300")) << message;

  engine.begin(2, 13);
  engine.forward(13, 13);
  engine.forward(13, 13);
  message = message_of<StepFailed>([&] { engine.publish(); });
  EXPECT_TRUE(contains(message, "captured twice")) << message;

  engine.begin(3, 13);
  engine.forward(13, 12, 13);  // a graph that was recorded for less
  message = message_of<StepFailed>([&] { engine.publish(); });
  EXPECT_TRUE(contains(message, "12 rows, too few")) << message;

  engine.model.spoil(1, 12, 3, -1);
  engine.begin(4, 13);
  engine.forward(13, 13);
  engine.publish();
  expect_rows(reader, engine.router, 4, 12, 13);
}

TEST_P(BindOn, ALayerWithARoutingOutputIsNotCapturedInAnotherWayToo) {
  MixedEngine engine(*device, make_shm_transport(*device, endpoint));
  bind_layers(engine.capturer, engine.layers());
  engine.begin(1, 13);
  EXPECT_THROW(engine.capturer.capture(7, engine.model.topk_ids(2, 13), *engine.stream),
               StateError);
  RouteSink sink{};
  EXPECT_THROW(engine.capturer.route_sink(7, sink), StateError);
  EXPECT_EQ(engine.capturer.route_output(7).data, engine.output_7.data);
}

// Refused before anything is bound or given.
class BindRefuses : public EndpointTest {
 protected:
  template <class Error = ArgumentError>
  void expect_refused(const std::vector<MoeLayer>& layers, const std::string& part) {
    const std::string message = message_of<Error>([&] { bind_layers(engine.capturer, layers); });
    EXPECT_TRUE(contains(message, part)) << message;
    for (const int layer : kShape.moe_layers()) EXPECT_FALSE(engine.capturer.bound(layer));
    EXPECT_FALSE(engine.capture_2);
    EXPECT_EQ(engine.sink_3.step, nullptr);
    EXPECT_EQ(engine.output_7.data, nullptr);
  }

  static Endpoint with_shape(Endpoint endpoint) {
    endpoint.shape = kShape;
    endpoint.max_tokens = kTokens;
    return endpoint;
  }

  std::unique_ptr<Device> device = make_host_device();
  MixedEngine engine{*device, make_shm_transport(*device, with_shape(endpoint))};
};

TEST_F(BindRefuses, AModelOfWhichNothingIsGiven) {
  expect_refused({}, "no MoE layer to bind; the model has 3");
}

TEST_F(BindRefuses, AModelOfWhichALayerIsMissing) {
  auto layers = engine.layers();
  layers.erase(layers.begin() + 1);
  expect_refused(layers, "layer 3 ");
}

TEST_F(BindRefuses, ALayerThatComesTwice) {  // H1
  auto layers = engine.layers();
  layers.push_back(layers[0]);
  expect_refused(layers, "layer 2 is given twice");
}

TEST_F(BindRefuses, ALayerThatTheShapeHasNot) {
  auto layers = engine.layers();
  layers.push_back({4, layers[0].router});
  expect_refused<RangeError>(layers, "layer 4 has no router");
}

TEST_F(BindRefuses, AFusedKernelThatCannotWriteItsRoutes) {
  auto layers = engine.layers();
  layers[2].router = FusedKernel{"fp4_block_moe", nullptr};
  expect_refused(layers, "layer 7: the fused kernel 'fp4_block_moe' cannot write its routes");
}

TEST_F(BindRefuses, AFusedKernelWhereRowsHoldWeights) {
  Endpoint weighed = with_shape(test_endpoint());
  weighed.shape = weighed.shape.with_weights(WeightType::bfloat16);
  MixedEngine all(*device, make_shm_transport(*device, weighed));
  const std::string message =
      message_of<ArgumentError>([&] { bind_layers(all.capturer, all.layers()); });
  EXPECT_TRUE(contains(message, "layer 7: the fused kernel 'grouped_moe' writes ids only, but"))
      << message;
  EXPECT_FALSE(all.capturer.bound(2));
}

TEST_F(BindRefuses, ASinkWhereEveryBitPatternIsAnExpert) {  // H21
  Endpoint wide = with_shape(test_endpoint());
  wide.shape = ModelShape({2, 3, 7}, 4, 65'536);
  Capturer capturer(make_shm_transport(*device, wide));
  auto layers = engine.layers();
  layers[2].router = layers[0].router;
  const std::string message = message_of<ArgumentError>([&] { bind_layers(capturer, layers); });
  EXPECT_TRUE(contains(message, "layer 3: a CapturingRouter of 65536 experts")) << message;
  EXPECT_FALSE(capturer.bound(2));
}

TEST_F(BindRefuses, ALayerWithoutAWayToBeGivenAnything) {
  auto layers = engine.layers();
  layers[0].router = ModularRouter{};
  expect_refused(layers, "layer 2: a ModularRouter without set_capture");
  layers = engine.layers();
  layers[1].router = CapturingRouter{};
  expect_refused(layers, "layer 3: a CapturingRouter without set_sink");
}

TEST_F(BindRefuses, AModelOfWhichALayerIsBoundAlready) {
  engine.capturer.bind(7);
  const std::string message =
      message_of<StateError>([&] { bind_layers(engine.capturer, engine.layers()); });
  EXPECT_TRUE(contains(message, "layer 7 is bound already")) << message;
  EXPECT_FALSE(engine.capturer.bound(2));
}

TEST_F(BindRefuses, WaysThatALayoutDoesNotAllow) {
  const auto refused = [&](RankLayout layout, std::vector<MoeLayer> layers) {
    MixedEngine all(*device, make_shm_transport(*device, with_shape(test_endpoint())),
                    {.dp_rank = 0, .dp_size = 2, .layout = layout});
    return message_of<ArgumentError>([&] { bind_layers(all.capturer, layers); });
  };
  EXPECT_TRUE(contains(refused(RankLayout::padded, engine.layers()), "layer 3: a CapturingRouter"));
  EXPECT_TRUE(contains(refused(RankLayout::concatenated, engine.layers()),
                       "layer 7: the fused kernel 'grouped_moe' writes its routes as int16"));
}

}  // namespace
}  // namespace moetap::test
