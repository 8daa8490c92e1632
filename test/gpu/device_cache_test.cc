#include "gpu/internal/device_cache.h"

#include <moetap/error.h>
#include <moetap/topk_ids.h>
#include <moetap/transport.h>

#include <gtest/gtest.h>

#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "test/gpu/counting_device.h"
#include "test/gpu/devices.h"
#include "test/gpu/model.h"
#include "test/gpu/picks_kernels.h"
#include "test/ipc/message_of.h"

namespace moetap {
namespace {

constexpr std::int64_t kMaxTokens = 100;
constexpr std::int64_t kSlots = 1000;

// A model, its cache and a record, on one stream.
struct Worker {
  Worker(const test::DeviceMaker& maker, const ModelShape& shape, std::string owner)
      : Worker(maker, shape, IdType::int32, std::move(owner)) {}
  Worker(const test::DeviceMaker& maker, const ModelShape& shape, IdType type = IdType::int32,
         std::string owner = "test/0")
      : device(maker()),
        stream(device->make_stream()),
        router{shape},
        model(*device, router, kMaxTokens, type),
        cache(*device, shape, kMaxTokens, std::move(owner)),
        record(device->allocate(StepRecordLayout(shape, kMaxTokens).bytes)) {
    std::vector<Slot> slots(kMaxTokens);
    std::iota(slots.begin(), slots.end(), Slot(500));
    slot_mapping = test::upload(*device, *stream, slots);
  }

  void capture(std::int64_t rows, Stream& on) {
    for (int layer = 0; layer < router.shape.num_layers(); ++layer) {
      cache.capture(layer, model.topk_ids(layer, rows), 0, on);
    }
  }

  void snapshot(std::int64_t num_tokens) {
    cache.snapshot(slot_mapping.as<const Slot>(), num_tokens, kSlots, record.data(), *stream);
    cache.end_step(*stream);
    bytes = test::download(*device, *stream, record.data(),
                           StepRecordLayout(router.shape, num_tokens).bytes);
    view.emplace(router.shape, num_tokens, std::span(bytes));
  }

  std::optional<std::string> fault(Step step) const {
    return fault_of(*view, router.shape, step, kSlots);
  }

  void expect_rows(Step step) const {
    EXPECT_EQ(fault(step), std::nullopt);
    const std::size_t row_bytes = router.shape.row_bytes();
    for (std::size_t row = 0; row < view->slots.size(); ++row) {
      ASSERT_EQ(view->slots[row], MarkedSlot(Slot(500 + row)));
      const auto got = view->rows.subspan(row * row_bytes, row_bytes);
      ASSERT_EQ(std::vector(got.begin(), got.end()), router.row(step, row)) << "row " << row;
    }
  }

  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  test::Router router;
  test::Model model;
  DeviceCache cache;
  Buffer record;
  Buffer slot_mapping;
  std::vector<std::byte> bytes;
  std::optional<StepRecordView> view;
};

test::DeviceMaker seeded(std::uint64_t with) {
  return {"seeded",
          [](std::uint64_t seed) -> std::unique_ptr<Device> { return make_seeded_device(seed); },
          with};
}

class DeviceCacheOn : public ::testing::TestWithParam<test::DeviceMaker> {};
INSTANTIATE_TEST_SUITE_P(Devices, DeviceCacheOn, ::testing::ValuesIn(test::every_device()),
                         test::device_name);

TEST_P(DeviceCacheOn, TurnsTheCapturedLayersIntoARecord) {
  const ModelShape shapes[] = {ModelShape::uniform(7, 8, 128),
                               ModelShape::uniform(3, 22, 512),
                               ModelShape({1, 5, 6}, 2, 256),
                               ModelShape::uniform(7, 8, 128).with_weights(WeightType::float32),
                               ModelShape::uniform(3, 22, 512).with_weights(WeightType::float32),
                               ModelShape({1, 5, 6}, 3, 256).with_weights(WeightType::bfloat16)};
  for (const ModelShape& shape : shapes) {
    for (const IdType type : {IdType::int16, IdType::int32, IdType::int64, IdType::uint16}) {
      Worker worker(GetParam(), shape, type);
      Step step = 0;
      for (const std::int64_t tokens : {100, 1, 64, 0, 33}) {
        worker.model.route(++step, tokens, *worker.stream);
        worker.cache.begin_step(step, tokens, 0, *worker.stream);
        worker.capture(tokens, *worker.stream);
        worker.snapshot(tokens);
        worker.expect_rows(step);
      }
    }
  }
}

TEST_P(DeviceCacheOn, ServesEveryStepWithOneGraph) {  // H13
  Worker worker(GetParam(), ModelShape::uniform(7, 8, 128));
  worker.stream->begin_capture();
  worker.capture(64, *worker.stream);
  const std::unique_ptr<Graph> graph = worker.stream->end_capture();

  Step step = 0;
  for (const std::int64_t tokens : {64, 5, 40}) {
    worker.model.route(++step, tokens, *worker.stream);
    worker.cache.begin_step(step, tokens, 0, *worker.stream);
    worker.stream->launch(*graph);
    worker.snapshot(tokens);
    worker.expect_rows(step);
  }

  // More tokens than the graph was recorded for.
  worker.model.route(++step, 65, *worker.stream);
  worker.cache.begin_step(step, 65, 0, *worker.stream);
  worker.stream->launch(*graph);
  worker.snapshot(65);
  EXPECT_NE(worker.fault(step).value().find("64 rows"), std::string::npos);
}

TEST_P(DeviceCacheOn, KnowsALayerThatAReplayedGraphLacks) {  // H3
  Worker worker(GetParam(), ModelShape({3, 4, 9}, 8, 128));
  worker.stream->begin_capture();
  worker.cache.capture(0, worker.model.topk_ids(0, 64), 0, *worker.stream);
  worker.cache.capture(2, worker.model.topk_ids(2, 64), 0, *worker.stream);
  const std::unique_ptr<Graph> graph = worker.stream->end_capture();

  // A step that captured all layers first, so that the missing one has an older stamp and rows.
  worker.model.route(1, 64, *worker.stream);
  worker.cache.begin_step(1, 64, 0, *worker.stream);
  worker.capture(64, *worker.stream);
  worker.snapshot(64);
  worker.expect_rows(1);

  worker.cache.begin_step(2, 64, 0, *worker.stream);
  worker.stream->launch(*graph);
  worker.snapshot(64);
  EXPECT_NE(worker.fault(2).value().find("layer 4 "), std::string::npos) << *worker.fault(2);
}

TEST_P(DeviceCacheOn, ForgetsAFaultWithItsStep) {
  Worker worker(GetParam(), ModelShape::uniform(3, 8, 128));
  worker.model.spoil(1, 20, 3, 128);
  worker.model.route(1, 64, *worker.stream);
  worker.cache.begin_step(1, 64, 0, *worker.stream);
  worker.capture(64, *worker.stream);
  worker.snapshot(64);
  EXPECT_NE(worker.fault(1).value().find("layer 1, token 20: expert id 128"), std::string::npos);

  worker.model.route(2, 64, *worker.stream);
  worker.cache.begin_step(2, 64, 0, *worker.stream);
  worker.capture(64, *worker.stream);
  worker.snapshot(64);
  worker.expect_rows(2);
}

TEST_P(DeviceCacheOn, FindsAnExpertThatComesTwiceInARow) {  // H32
  for (const WeightType weights : {WeightType::none, WeightType::float32}) {
    Worker worker(GetParam(), ModelShape({3, 4, 9}, 8, 128).with_weights(weights));
    const auto run = [&](Step step, int k, int other) {
      worker.model.spoil(1, 20, k, 7);
      worker.model.spoil(1, 20, other, 7);
      worker.model.route(step, 64, *worker.stream);
      worker.cache.begin_step(step, 64, 0, *worker.stream);
      worker.capture(64, *worker.stream);
      worker.snapshot(64);
      return worker.fault(step);
    };
    const std::string twice = "layer 4, token 20: expert id 7 was picked twice";
    EXPECT_TRUE(test::contains(run(1, 0, 1).value(), twice)) << *run(2, 0, 1);
    // A host leaves the comparison of all of them to callers that ask for it.
    const bool gpu = worker.device->name().starts_with("cuda");
    EXPECT_EQ(run(3, 2, 7).has_value(), gpu);
    worker.cache.compare_all_picks();
    EXPECT_TRUE(test::contains(run(4, 2, 7).value(), twice));
  }
  Worker worker(GetParam(), ModelShape({3}, 8, 128).with_repeated_experts());
  worker.cache.compare_all_picks();  // which changes nothing for a model that is declared to repeat
  for (int k = 0; k < 8; ++k) worker.model.spoil(0, 20, k, 7);
  worker.model.route(1, 64, *worker.stream);
  worker.cache.begin_step(1, 64, 0, *worker.stream);
  worker.capture(64, *worker.stream);
  worker.snapshot(64);
  EXPECT_EQ(worker.fault(1), std::nullopt);
}

// Seen on real streams as a step that has another step's rows, if at all.
TEST(DeviceCache, OrdersStepsOnStreamsThatNothingElseOrders) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    Worker worker(seeded(seed), ModelShape::uniform(3, 8, 128));
    auto& device = dynamic_cast<SeededDevice&>(*worker.device);
    const auto other = device.make_stream();
    const test::Router& router = worker.router;
    test::Model others_picks(device, router, kMaxTokens);
    const StepRecordLayout layout(router.shape, 64);
    const Buffer others_record = device.allocate(layout.bytes);

    device.hold(*worker.stream, true);
    worker.model.route(1, 64, *worker.stream);
    worker.cache.begin_step(1, 64, 0, *worker.stream);
    worker.capture(64, *worker.stream);
    if (seed % 2 == 0) {  // it ends with a snapshot, or without one
      worker.cache.snapshot(worker.slot_mapping.as<const Slot>(), 64, kSlots, worker.record.data(),
                            *worker.stream);
    }
    worker.cache.end_step(*worker.stream);
    others_picks.route(2, 64, *other);
    worker.cache.begin_step(2, 64, 0, *other);
    for (int layer = 0; layer < 3; ++layer) {
      worker.cache.capture(layer, others_picks.topk_ids(layer, 64), 0, *other);
    }
    worker.cache.snapshot(worker.slot_mapping.as<const Slot>(), 64, kSlots, others_record.data(),
                          *other);
    worker.bytes = test::download(device, *other, others_record.data(), layout.bytes);
    worker.view.emplace(router.shape, 64, std::span(worker.bytes));
    worker.expect_rows(2);
    if (seed % 2 != 0) continue;
    worker.bytes = test::download(device, *worker.stream, worker.record.data(), layout.bytes);
    worker.view.emplace(router.shape, 64, std::span(worker.bytes));
    worker.expect_rows(1);
  }
}

// Layer 1 was captured with capture() in step 1 and is forgotten in step 2, which has not run when
// its routing output is taken for step 3: what lies there is step 1's.
TEST(DeviceCache, ARoutingOutputIsTheNextStepsAndNotOneInFlight) {  // H3
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    Worker worker(seeded(seed), ModelShape({3, 4, 9}, 8, 128));
    auto& device = dynamic_cast<SeededDevice&>(*worker.device);
    const RouteOutput output =
        worker.cache.route_output(0);  // so that there are outputs to look at
    const auto run = [&](Step step, int layers) {
      worker.model.route(step, 64, *worker.stream);
      worker.cache.begin_step(step, 64, 0, *worker.stream);
      worker.stream->launch(
          test::OutputPicks{static_cast<const std::int32_t*>(worker.model.topk_ids(0, 64).data), 64,
                            8, output.data},
          1);
      for (int layer = 2; layer > 2 - layers; --layer) {
        worker.cache.capture(layer, worker.model.topk_ids(layer, 64), 0, *worker.stream);
      }
    };
    run(1, 2);
    worker.snapshot(64);
    worker.expect_rows(1);

    run(2, 1);
    worker.stream->synchronize();  // so that it was opened, and layers were cleared, before
    device.hold(*worker.stream, true);
    worker.cache.snapshot(worker.slot_mapping.as<const Slot>(), 64, kSlots, worker.record.data(),
                          *worker.stream);
    worker.cache.end_step(*worker.stream);
    if (seed % 2 == 0) {
      EXPECT_NE(worker.cache.route_output(1).data, nullptr);
    } else {
      EXPECT_NE(worker.cache.sink(1, 0, DeviceCache::kAllRows).routes, nullptr);
    }
    device.hold(*worker.stream, false);
    worker.bytes = test::download(device, *worker.stream, worker.record.data(),
                                  StepRecordLayout(worker.router.shape, 64).bytes);
    worker.view.emplace(worker.router.shape, 64, std::span(worker.bytes));
    ASSERT_NE(worker.fault(2), std::nullopt);
    EXPECT_TRUE(test::contains(*worker.fault(2), "layer 4 was not captured")) << *worker.fault(2);
  }
}

// Loaded at its first launch, a kernel could wait there for work that waits for that launch.
TEST(DeviceCache, MakesEveryKernelReadyThatItLaunches) {
  for (const WeightType weights : {WeightType::none, WeightType::float32}) {
    test::CountingDevice device(make_host_device());
    const auto stream = device.make_stream();
    const ModelShape shape = ModelShape({3, 4}, 2, 128).with_weights(weights);
    DeviceCache cache(device, shape, 4, "test/0");
    (void)cache.sink(1, 0, DeviceCache::kAllRows);
    const Buffer ids = device.allocate(1024);
    const Buffer slots = device.allocate(4 * sizeof(Slot));
    const Buffer record = device.allocate(StepRecordLayout(shape, 4).bytes);
    stream->fill(ids.data(), 0, ids.size());
    stream->fill(slots.data(), 0, slots.size());
    device.take();
    Step step = 0;
    for (const IdType type :
         {IdType::uint8, IdType::uint16, IdType::int16, IdType::int32, IdType::int64}) {
      cache.begin_step(++step, 4, 0, *stream);
      TopkIds picks{ids.data(), type, 4, 2, 2};
      if (weights != WeightType::none) picks.weights = {ids.data(), weights, 2};
      cache.capture(0, picks, 0, *stream);
      cache.snapshot(slots.as<const Slot>(), 4, kSlots, record.data(), *stream);
    }
    const auto kernels = device.take().kernels;
    EXPECT_GE(std::set(kernels.begin(), kernels.end()).size(), 9u);
    for (const std::string& kernel : kernels) {
      EXPECT_TRUE(device.loaded().contains(kernel)) << kernel;
    }
    stream->synchronize();
  }
}

TEST_P(DeviceCacheOn, RefusesMoreTokensThanItHasRows) {  // H4
  Worker worker(GetParam(), ModelShape::uniform(3, 8, 128));
  worker.model.route(1, 64, *worker.stream);
  worker.cache.begin_step(1, 64, 0, *worker.stream);
  worker.capture(64, *worker.stream);
  try {
    worker.cache.begin_step(2, kMaxTokens + 1, 0, *worker.stream);
    FAIL() << "a step of 101 tokens began";
  } catch (const RangeError& error) {
    EXPECT_NE(std::string(error.what()).find("101 tokens"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("100 rows"), std::string::npos);
  }
  worker.snapshot(64);  // of the step that is still open
  worker.expect_rows(1);
}

TEST_P(DeviceCacheOn, RefusesWhatItHasNoMemoryFor) {
  Worker worker(GetParam(), ModelShape::uniform(3, 8, 128));
  TopkIds ids = worker.model.topk_ids(0, 64);
  EXPECT_THROW(worker.cache.capture(3, ids, 0, *worker.stream), RangeError);
  EXPECT_THROW(worker.cache.capture(-1, ids, 0, *worker.stream), RangeError);
  ids.columns = 7;
  EXPECT_THROW(worker.cache.capture(0, ids, 0, *worker.stream), ArgumentError);
  ids.columns = 9;
  EXPECT_THROW(worker.cache.capture(0, ids, 0, *worker.stream), ArgumentError);
}

TEST_P(DeviceCacheOn, RefusesOtherWeightsThanRowsHold) {
  Worker worker(GetParam(), ModelShape({3, 4, 9}, 8, 128).with_weights(WeightType::float32));
  const TopkIds good = worker.model.topk_ids(1, 64);
  const auto refused = [&](const TopkWeights& weights) {
    TopkIds ids = good;
    ids.weights = weights;
    return test::message_of<ArgumentError>(
        [&] { worker.cache.capture(1, ids, 0, *worker.stream); });
  };
  using test::contains;
  EXPECT_TRUE(
      contains(refused({}), "layer 4: topk_ids with weights of type none, but rows are of"));
  EXPECT_TRUE(contains(refused({good.weights.data, WeightType::bfloat16, 8}), "bfloat16"));
  EXPECT_TRUE(contains(refused({good.weights.data, WeightType::float32, 7}), "stride of 7"));
  EXPECT_TRUE(contains(refused({nullptr, WeightType::float32, 8}), "null, but have 64 rows"));
  EXPECT_TRUE(
      contains(test::message_of<ArgumentError>([&] { worker.cache.route_output(1); }), "layer 4"));

  Worker plain(GetParam(), ModelShape({3, 4, 9}, 8, 128), "test/1");
  EXPECT_TRUE(contains(
      test::message_of<ArgumentError>([&] { plain.cache.capture(1, good, 0, *plain.stream); }),
      "layer 4: topk_ids with weights of type float32"));
}

// The engine's own router captures each layer, and says which weights it gives.
TEST_P(DeviceCacheOn, ALayerWithoutItsWeightsFailsTheStep) {  // as H3, of weights
  for (const WeightType held : {WeightType::none, WeightType::float32, WeightType::bfloat16}) {
    Worker worker(GetParam(), ModelShape({3, 4}, 8, 128).with_weights(held));
    const Buffer others = test::upload(*worker.device, *worker.stream,
                                       std::vector<float>(64 * 8, 0.5F));  // enough of either type
    Step step = 0;
    for (const WeightType given : {WeightType::none, WeightType::float32, WeightType::bfloat16}) {
      SCOPED_TRACE(::testing::Message()
                   << weight_type_name(given) << " for " << weight_type_name(held));
      worker.model.route(++step, 64, *worker.stream);
      worker.cache.begin_step(step, 64, 0, *worker.stream);
      worker.cache.capture(0, worker.model.topk_ids(0, 64), 0, *worker.stream);
      const TopkIds ids = worker.model.topk_ids(1, 64);
      const test::SinkPicks kernel{static_cast<const std::int32_t*>(ids.data),
                                   64,
                                   8,
                                   worker.cache.sink(1, 0, DeviceCache::kAllRows),
                                   given,
                                   given == held ? ids.weights.data : others.data()};
      worker.stream->launch(kernel, 1);
      worker.snapshot(64);
      const auto fault = worker.fault(step);
      if (given == held) {
        worker.expect_rows(step);
      } else if (given == WeightType::float32 && held == WeightType::bfloat16) {
        EXPECT_EQ(fault, std::nullopt);
      } else {
        ASSERT_NE(fault, std::nullopt);
        EXPECT_TRUE(test::contains(
            *fault, "layer 4 was captured with " +
                        std::string(given == WeightType::none ? "no" : weight_type_name(given)) +
                        " weights"))
            << *fault;
      }
    }
  }
}

// Whatever the memory held before: a step number made of each byte is one that it could look like.
TEST(DeviceCache, HasCapturedNothingAtFirst) {  // H3
  const std::unique_ptr<Device> device = make_host_device();
  const std::unique_ptr<Stream> stream = device->make_stream();
  const ModelShape shape = ModelShape::uniform(3, 8, 128);
  const Buffer slots = test::upload(*device, *stream, std::vector<Slot>(4, 5));
  const StepRecordLayout layout(shape, 4);
  const Buffer record = device->allocate(layout.bytes);
  for (std::uint64_t byte = 1; byte < 256; ++byte) {
    const Step step(byte * 0x0101010101010101);
    DeviceCache cache(*device, shape, 4, "test/0");
    cache.begin_step(step, 4, 0, *stream);
    cache.snapshot(slots.as<const Slot>(), 4, kSlots, record.data(), *stream);
    std::vector<std::byte> bytes = test::download(*device, *stream, record.data(), layout.bytes);
    const StepRecordView view(shape, 4, bytes);
    EXPECT_NE(fault_of(view, shape, step, kSlots).value().find("layers 0-2"), std::string::npos);
    for (const MarkedSlot slot : view.slots)
      EXPECT_EQ(slot, MarkedSlot(5));  // and no route is missing
  }
}

TEST(DeviceCache, IsOneForAModelInAProcess) {  // H12
  const std::unique_ptr<Device> device = make_host_device();
  const ModelShape shape = ModelShape::uniform(3, 8, 128);
  {
    DeviceCache first(*device, shape, 10, "a/0");
    DeviceCache other_rank(*device, shape, 10, "a/1");
    try {
      DeviceCache second(*device, shape, 10, "a/0");
      FAIL() << "two caches for one model";
    } catch (const OwnedError& error) {
      EXPECT_NE(std::string(error.what()).find("'a/0'"), std::string::npos);
    }
    // That attempt did not free the name.
    EXPECT_THROW(DeviceCache(*device, shape, 10, "a/0"), OwnedError);
  }
  DeviceCache next(*device, shape, 10, "a/0");
}

// On a GPU such a load would be the end of the process's context.
TEST(DeviceCache, RefusesPicksAtAddressesThatTheirElementsCannotHave) {
  const auto device = make_host_device();
  const auto stream = device->make_stream();
  DeviceCache cache(*device, ModelShape({3}, 2, 9).with_weights(WeightType::float32), 4, "odd/0");
  const Buffer memory = device->allocate(256);
  const TopkIds good{
      memory.data(), IdType::int32, 4, 2, 2, {memory.data(), WeightType::float32, 2}};
  cache.begin_step(1, 4, 0, *stream);
  const auto refused = [&](std::size_t ids, std::size_t weights) {
    TopkIds bad = good;
    bad.data = memory.data() + ids;
    bad.weights.data = memory.data() + weights;
    return test::message_of<ArgumentError>([&] { cache.capture(0, bad, 0, *stream); });
  };
  EXPECT_TRUE(test::contains(refused(1, 0), "layer 3: topk_ids at 0x"));
  EXPECT_TRUE(test::contains(refused(2, 0), "elements of 4 bytes"));
  EXPECT_TRUE(test::contains(refused(0, 2), "layer 3: weights at 0x"));
  TopkIds unknown = good;
  unknown.weights.type = static_cast<WeightType>(9);
  EXPECT_TRUE(test::contains(
      test::message_of<ArgumentError>([&] { cache.capture(0, unknown, 0, *stream); }),
      "layer 3: topk_ids with weights of type unknown (9)"));
  EXPECT_NO_THROW(cache.capture(0, good, 0, *stream));
}

}  // namespace
}  // namespace moetap
