// The router, plain and fused with the capture, against a plain reference in double precision.
#include <moetap/error.h>
#include <moetap/routes.h>
#include <moetap/topk_ids.h>
#include <moetap/topk_router.h>
#include <moetap/transport.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "gpu/internal/device_cache.h"
#include "test/gpu/device_test.h"
#include "test/gpu/router_reference.h"
#include "test/ipc/message_of.h"

namespace moetap::test {
namespace {

// Multiples of 1/64, so that equal ones are common and others are far enough apart for a float.
std::vector<float> draw(std::mt19937& random, std::size_t count, int range) {
  std::vector<float> values(count);
  std::uniform_int_distribution<int> any(-range, range);
  for (float& value : values) value = static_cast<float>(any(random)) / 64;
  return values;
}

struct Case {
  const char* name;
  RouterOptions options;
  bool bias = false;
  int range = 256;  // of logits, in 1/64
};

const Case kCases[] = {
    {"Qwen3", {.num_experts = 128, .top_k = 8}},
    {"DeepSeekV3",
     {.num_experts = 256,
      .top_k = 8,
      .scoring = Scoring::sigmoid,
      .num_groups = 8,
      .top_groups = 4,
      .scale = 2.5F},
     true},
    {"DeepSeekV2",
     {.num_experts = 160,
      .top_k = 6,
      .num_groups = 8,
      .top_groups = 3,
      .renormalize = false,
      .scale = 16}},
    {"Mixtral", {.num_experts = 8, .top_k = 2}},
    {"Many", {.num_experts = 512, .top_k = 22, .scoring = Scoring::sigmoid}, true},
    {"All", {.num_experts = 5, .top_k = 5}},
    {"GroupsOfOne", {.num_experts = 32, .top_k = 4, .num_groups = 32, .top_groups = 7}},
    {"BiasedGroupsOfOne", {.num_experts = 32, .top_k = 4, .num_groups = 32, .top_groups = 7}, true},
    {"Ties", {.num_experts = 60, .top_k = 4, .num_groups = 4, .top_groups = 2}, false, 2},
};

class RouterOn : public DeviceTest {
 protected:
  // Memory of one layer's router.
  struct Layer {
    Layer(RouterOn& test, const RouterOptions& options, const std::vector<float>& logit_values,
          const std::vector<float>& bias_values)
        : num_tokens(static_cast<std::int64_t>(logit_values.size()) / options.num_experts),
          picks(static_cast<std::size_t>(num_tokens) * static_cast<std::size_t>(options.top_k)),
          logits(upload(*test.device, *test.stream, logit_values)),
          bias(upload(*test.device, *test.stream, bias_values)),
          ids(test.device->allocate(picks * sizeof(std::int32_t))),
          weights(test.device->allocate(picks * sizeof(float))) {}

    RouterBuffers buffers() const {
      return {logits.as<float>(), bias.as<float>(), ids.as<std::int32_t>(), weights.as<float>(),
              num_tokens};
    }

    std::int64_t num_tokens;
    std::size_t picks;
    Buffer logits, bias, ids, weights;
  };

  // A cache of one layer and what its record says of a step with these tokens.
  struct Cache {
    Cache(RouterOn& test, const RouterOptions& options, std::int64_t max_tokens, std::string owner,
          WeightType weights = WeightType::none)
        : shape(ModelShape::uniform(1, options.top_k, options.num_experts).with_weights(weights)),
          cache(*test.device, shape, max_tokens, std::move(owner)),
          record(test.device->allocate(StepRecordLayout(shape, max_tokens).bytes)) {
      std::vector<Slot> values(static_cast<std::size_t>(max_tokens));
      std::iota(values.begin(), values.end(), Slot(0));
      slots = upload(*test.device, *test.stream, values);
    }

    RouteSink sink() { return cache.sink(0, 0, DeviceCache::kAllRows); }

    std::vector<std::byte> snapshot(RouterOn& test, std::int64_t num_tokens) {
      cache.snapshot(slots.as<const Slot>(), num_tokens, cache.max_tokens(), record.data(),
                     *test.stream);
      return download(*test.device, *test.stream, record.data(),
                      StepRecordLayout(shape, num_tokens).bytes);
    }

    ModelShape shape;
    DeviceCache cache;
    Buffer record;
    Buffer slots;
  };

  std::vector<std::int32_t> ids_of(const Layer& layer) {
    return download<std::int32_t>(*device, *stream, layer.ids.data(), layer.picks);
  }
  std::vector<float> weights_of(const Layer& layer) {
    return download<float>(*device, *stream, layer.weights.data(), layer.picks);
  }

  std::unique_ptr<Stream> stream = device->make_stream();
};

TEST_P(RouterOn, PicksWhatTheReferencePicks) {
  std::mt19937 random(3);
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    const auto experts = static_cast<std::size_t>(c.options.num_experts);
    const auto logits = draw(random, 37 * experts, c.range);
    const auto bias = c.bias ? draw(random, experts, 16) : std::vector<float>();
    const Layer layer(*this, c.options, logits, bias);
    launch_router(c.options, layer.buffers(), *stream);
    const auto ids = ids_of(layer);
    const auto weights = weights_of(layer);
    for (std::size_t token = 0; token < 37; ++token) {
      const RoutedToken expected =
          route_plainly(c.options, std::span(logits).subspan(token * experts, experts), bias);
      for (std::size_t k = 0; k < expected.ids.size(); ++k) {
        const std::size_t i = token * expected.ids.size() + k;
        ASSERT_EQ(ids[i], expected.ids[k]) << "token " << token << " k " << k;
        ASSERT_NEAR(weights[i], expected.weights[k], 1e-5 * c.options.scale);
      }
    }
  }
}

TEST_P(RouterOn, CapturesTheSameFusedAsWithAKernelOfItsOwn) {
  std::mt19937 random(4);
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    const auto experts = static_cast<std::size_t>(c.options.num_experts);
    const auto logits = draw(random, 37 * experts, c.range);
    const Layer fused(*this, c.options, logits, {});
    const Layer plain(*this, c.options, logits, {});
    Cache fused_cache(*this, c.options, 40, "fused/0");
    Cache plain_cache(*this, c.options, 40, "plain/0");

    fused_cache.cache.begin_step(1, 30, 0, *stream);
    launch_router(c.options, fused.buffers(), fused_cache.sink(), *stream);
    plain_cache.cache.begin_step(1, 30, 0, *stream);
    launch_router(c.options, plain.buffers(), *stream);
    plain_cache.cache.capture(
        0, {plain.ids.data(), IdType::int32, 37, c.options.top_k, c.options.top_k}, 0, *stream);

    std::vector<std::byte> bytes = fused_cache.snapshot(*this, 30);
    EXPECT_EQ(bytes, plain_cache.snapshot(*this, 30));
    const StepRecordView record(fused_cache.shape, 30, bytes);
    EXPECT_EQ(fault_of(record, fused_cache.shape, 1, 40), std::nullopt);
    const auto ids = ids_of(fused);
    EXPECT_EQ(ids, ids_of(plain));
    EXPECT_EQ(weights_of(fused), weights_of(plain));
    const std::size_t width = id_bytes(fused_cache.shape.id_type());
    for (std::size_t i = 0; i < record.rows.size() / width; ++i) {
      std::uint16_t id = 0;
      std::memcpy(&id, &record.rows[i * width], width);
      ASSERT_EQ(id, ids[i]) << i;
    }
  }
}

TEST_P(RouterOn, HandsItsRenormalizedWeightsOver) {
  std::mt19937 random(7);
  for (const Case& c : kCases) {
    for (const WeightType type : {WeightType::float32, WeightType::bfloat16}) {
      SCOPED_TRACE(::testing::Message() << c.name << " " << weight_type_name(type));
      const auto experts = static_cast<std::size_t>(c.options.num_experts);
      const Layer layer(*this, c.options, draw(random, 37 * experts, c.range), {});
      Cache fused(*this, c.options, 40, "fused/0", type);
      Cache plain(*this, c.options, 40, "plain/0", type);
      fused.cache.begin_step(1, 30, 0, *stream);
      launch_router(c.options, layer.buffers(), fused.sink(), *stream);
      plain.cache.begin_step(1, 30, 0, *stream);
      const TopkWeights weights{layer.weights.data(), WeightType::float32, c.options.top_k};
      plain.cache.capture(
          0, {layer.ids.data(), IdType::int32, 37, c.options.top_k, c.options.top_k, weights}, 0,
          *stream);
      std::vector<std::byte> bytes = fused.snapshot(*this, 30);
      EXPECT_EQ(bytes, plain.snapshot(*this, 30));
      const StepRecordView record(fused.shape, 30, bytes);
      EXPECT_EQ(fault_of(record, fused.shape, 1, 40), std::nullopt);
      if (type != WeightType::float32) continue;
      const auto expected = weights_of(layer);
      const auto top_k = static_cast<std::size_t>(c.options.top_k);
      for (std::size_t row = 0; row < 30; ++row) {
        const auto found = moetap::weights_of<float>(
            fused.shape,
            record.rows.subspan(row * fused.shape.row_bytes(), fused.shape.row_bytes()));
        ASSERT_TRUE(std::ranges::equal(found, std::span(expected).subspan(row * top_k, top_k)));
      }
    }
  }
}

TEST_P(RouterOn, HasNoPickWhereNoScoreIsANumber) {  // and so a missing route, H2
  const RouterOptions options{.num_experts = 16, .top_k = 4, .scoring = Scoring::sigmoid};
  std::vector<float> logits(2 * 16, std::numeric_limits<float>::quiet_NaN());
  logits[3] = 1;
  for (std::size_t i = 16; i < 32; ++i) logits[i] = static_cast<float>(i) / 16;
  const Layer layer(*this, options, logits, {});
  Cache cache(*this, options, 4, "nan/0");
  cache.cache.begin_step(1, 2, 0, *stream);
  launch_router(options, layer.buffers(), cache.sink(), *stream);
  std::vector<std::byte> bytes = cache.snapshot(*this, 2);
  const StepRecordView record(cache.shape, 2, bytes);
  EXPECT_EQ(fault_of(record, cache.shape, 1, 4), std::nullopt);
  EXPECT_EQ(record.slots[0], MarkedSlot::missing(0));
  EXPECT_EQ(record.slots[1], MarkedSlot(1));
  EXPECT_EQ(ids_of(layer), (std::vector<std::int32_t>{3, -1, -1, -1, 15, 14, 13, 12}));
}

TEST_P(RouterOn, ServesEveryStepWithOneGraph) {  // H2, H13
  const RouterOptions options{.num_experts = 16, .top_k = 2};
  std::mt19937 random(5);
  const Layer layer(*this, options, draw(random, 64 * 16, 100), {});
  Cache cache(*this, options, 100, "graph/0");
  stream->begin_capture();
  launch_router(options, layer.buffers(), cache.sink(), *stream);
  const auto graph = stream->end_capture();
  Step step = 0;
  for (const std::int64_t tokens : {64, 5, 0, 40}) {
    cache.cache.begin_step(++step, tokens, 0, *stream);
    stream->launch(*graph);
    std::vector<std::byte> bytes = cache.snapshot(*this, tokens);
    const StepRecordView record(cache.shape, tokens, bytes);
    EXPECT_EQ(fault_of(record, cache.shape, step, 100), std::nullopt);
    EXPECT_EQ(record.captured[0], step);
  }
  cache.cache.begin_step(++step, 65, 0, *stream);
  stream->launch(*graph);
  std::vector<std::byte> bytes = cache.snapshot(*this, 65);
  const auto fault = fault_of({cache.shape, 65, bytes}, cache.shape, step, 100);
  EXPECT_TRUE(contains(fault.value(), "64 rows, too few")) << *fault;
}

// After this rank's rows lie the next one's.
TEST_P(RouterOn, TakesTheRowsOfThisRankAndNoMore) {  // H5
  const RouterOptions options{.num_experts = 16, .top_k = 2};
  std::mt19937 random(6);
  const Layer layer(*this, options, draw(random, 24 * 16, 100), {});
  Cache cache(*this, options, 20, "rank/0");
  const RouteSink sink = cache.cache.sink(0, 8, 16);
  cache.cache.begin_step(1, 7, 0, *stream);
  launch_router(options, layer.buffers(), sink, *stream);
  std::vector<std::byte> bytes = cache.snapshot(*this, 7);
  const StepRecordView record(cache.shape, 7, bytes);
  EXPECT_EQ(fault_of(record, cache.shape, 1, 20), std::nullopt);
  const auto ids = ids_of(layer);
  for (std::size_t i = 0; i < record.rows.size(); ++i) {
    EXPECT_EQ(std::to_integer<int>(record.rows[i]), ids[16 + i]) << i;
  }

  cache.cache.begin_step(2, 9, 0, *stream);
  launch_router(options, layer.buffers(), sink, *stream);
  bytes = cache.snapshot(*this, 9);
  const auto fault = fault_of({cache.shape, 9, bytes}, cache.shape, 2, 20);
  EXPECT_TRUE(contains(fault.value(), "16 rows, too few")) << *fault;
}

MOETAP_ON_EVERY_DEVICE(RouterOn);

TEST(RouterOptions, NameWhatIsNotAllowed) {
  const auto message = [](const RouterOptions& options) {
    return message_of<ArgumentError>([&] { options.validate(); });
  };
  EXPECT_TRUE(contains(message({.num_experts = 513, .top_k = 8}), "num_experts is 513"));
  EXPECT_TRUE(contains(message({.num_experts = 0, .top_k = 8}), "num_experts is 0"));
  EXPECT_TRUE(contains(message({.num_experts = 8, .top_k = 9}), "top_k is 9"));
  EXPECT_TRUE(contains(message({.num_experts = 8, .top_k = 0}), "top_k is 0"));
  EXPECT_TRUE(
      contains(message({.num_experts = 9, .top_k = 1, .num_groups = 2}), "num_groups is 2"));
  EXPECT_TRUE(contains(message({.num_experts = 66, .top_k = 1, .num_groups = 33}), "num_groups"));
  EXPECT_TRUE(contains(message({.num_experts = 8, .top_k = 1, .num_groups = 2, .top_groups = 3}),
                       "top_groups is 3"));
  EXPECT_TRUE(contains(message({.num_experts = 8, .top_k = 5, .num_groups = 2, .top_groups = 1}),
                       "top_k is 5"));
}

}  // namespace
}  // namespace moetap::test
