#include <moetap/device_cache.h>
#include <moetap/error.h>
#include <moetap/transport.h>

#include <gtest/gtest.h>

#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "devices.h"
#include "message_of.h"
#include "model.h"
#include "picks_kernels.h"

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
    std::iota(slots.begin(), slots.end(), 500);
    slot_mapping = test::upload(*device, *stream, slots);
  }

  void capture(std::int64_t rows, Stream& on) {
    for (int layer = 0; layer < router.shape.num_layers(); ++layer) {
      cache.capture(layer, model.topk_ids(layer, rows), 0, on);
    }
  }

  void snapshot(std::int64_t num_tokens) {
    cache.snapshot(slot_mapping.as<const Slot>(), num_tokens, kSlots, record.data(), *stream);
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
      ASSERT_EQ(view->slots[row], 500 + static_cast<Slot>(row));
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
                                   worker.cache.sink(1, 0, CaptureTransport::kAllRows),
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
    const Step step = byte * 0x0101010101010101;
    DeviceCache cache(*device, shape, 4, "test/0");
    cache.begin_step(step, 4, 0, *stream);
    cache.snapshot(slots.as<const Slot>(), 4, kSlots, record.data(), *stream);
    std::vector<std::byte> bytes = test::download(*device, *stream, record.data(), layout.bytes);
    const StepRecordView view(shape, 4, bytes);
    EXPECT_NE(fault_of(view, shape, step, kSlots).value().find("layers 0-2"), std::string::npos);
    for (const Slot slot : view.slots) EXPECT_EQ(slot, 5);  // and no route is missing
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
