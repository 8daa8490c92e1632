// Parts of topk_ids on their way into one, with ranks that are pretended in this process.
#include <moetap/capturer.h>
#include <moetap/collective.h>
#include <moetap/device_fault.h>
#include <moetap/error.h>
#include <moetap/read_transport.h>
#include <moetap/route_sink.h>
#include <moetap/topk_ids.h>
#include <moetap/transport.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "test/gpu/device_test.h"
#include "test/gpu/neighbours.h"
#include "test/ipc/message_of.h"
#include "test/ipc/test_endpoint.h"
#include "test/lib/throws.h"

namespace moetap::test {
namespace {

constexpr std::int32_t kNothing = kNotGathered;

class PartGatherOn : public DeviceTest {
 protected:
  std::vector<std::int32_t> result(const TopkIds& whole) {
    EXPECT_EQ(whole.type, IdType::int32);
    EXPECT_EQ(whole.row_stride, whole.columns);
    return download<std::int32_t>(*device, *stream, whole.data,
                                  static_cast<std::size_t>(whole.rows * whole.columns));
  }

  // Gathers one row of three ids of type T, of which rank 0 of two has a row before it.
  template <class T>
  std::vector<std::int32_t> gathered(const std::vector<T>& ids, IdType type) {
    const Buffer memory = upload(*device, *stream, ids);
    Neighbours ranks(2, 1);
    PartGather gather(*device, ranks, 3, 4);
    const std::vector<std::int64_t> parts{1, 1};
    return result(gather.gather({memory.data(), type, 1, 3, 3}, parts, *stream));
  }

  std::unique_ptr<Stream> stream = device->make_stream();
};
MOETAP_ON_EVERY_DEVICE(PartGatherOn);

using Ids = std::vector<std::int32_t>;

TEST_P(PartGatherOn, TakesIdsOfEveryType) {
  constexpr std::int32_t n = kNothing;
  EXPECT_EQ(gathered<std::uint8_t>({0, 7, 255}, IdType::uint8), (Ids{n, n, n, 0, 7, 255}));
  EXPECT_EQ(gathered<std::uint16_t>({0, 7, 65535}, IdType::uint16), (Ids{n, n, n, 0, 7, 65535}));
  EXPECT_EQ(gathered<std::int16_t>({-1, 7, 32767}, IdType::int16), (Ids{n, n, n, -1, 7, 32767}));
  EXPECT_EQ(gathered<std::int32_t>({-1, 7, 70000}, IdType::int32), (Ids{n, n, n, -1, 7, 70000}));
  EXPECT_EQ(gathered<std::int64_t>({-1, 7, 70000}, IdType::int64), (Ids{n, n, n, -1, 7, 70000}));
}

TEST_P(PartGatherOn, AnIdThatInt32CannotHoldIsNoExperts) {  // H21
  constexpr std::int64_t wraps = (std::int64_t{1} << 32) + 5;
  const Ids ids = gathered<std::int64_t>({wraps, -wraps, 5}, IdType::int64);
  EXPECT_LT(ids[3], -1);
  EXPECT_LT(ids[4], -1);
  EXPECT_EQ(ids[5], 5);
}

TEST_P(PartGatherOn, DropsPaddingAndDeclaredColumns) {  // H6, H27
  // Two rows and one of padding; two routed ids, one of a shared expert, and a gap.
  const std::vector<std::int64_t> rows{1, 2, 90, 99, 3, 4, 91, 99, 97, 98, 92, 99};
  const Buffer memory = upload(*device, *stream, rows);
  Neighbours ranks(3, 1);
  PartGather gather(*device, ranks, 2, 8, 1);
  const std::vector<std::int64_t> parts{1, 2, 0};
  const TopkIds whole = gather.gather({memory.data(), IdType::int64, 3, 3, 4}, parts, *stream);
  EXPECT_EQ(whole.rows, 3);
  EXPECT_EQ(whole.columns, 2);
  EXPECT_EQ(result(whole), (Ids{kNothing, kNothing, 1, 2, 3, 4}));
  EXPECT_EQ(ranks.given, (std::vector<std::int64_t>{2, 4, 0}));
}

TEST_P(PartGatherOn, PartsLongerThanABlockOfTheKernel) {
  std::vector<std::int32_t> rows(300 * 3);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::int32_t>(i);
  const Buffer memory = upload(*device, *stream, rows);
  Neighbours ranks(1, 0);
  PartGather gather(*device, ranks, 3, 300);
  const std::vector<std::int64_t> parts{300};
  EXPECT_EQ(result(gather.gather({memory.data(), IdType::int32, 300, 3, 3}, parts, *stream)), rows);
}

TEST_P(PartGatherOn, NothingOfAnEarlierStepIsLeft) {
  Neighbours ranks(2, 0);
  PartGather gather(*device, ranks, 1, 4);
  const Buffer memory = upload(*device, *stream, std::vector<std::int32_t>{1, 2, 3, 4});
  const TopkIds part{memory.data(), IdType::int32, 4, 1, 1};
  const std::vector<std::int64_t> all{4, 0};
  EXPECT_EQ(result(gather.gather(part, all, *stream)), (Ids{1, 2, 3, 4}));
  const std::vector<std::int64_t> half{2, 2};
  EXPECT_EQ(result(gather.gather(part, half, *stream)), (Ids{1, 2, kNothing, kNothing}));
}

// Whole rows of ids and the bits of their weights, as a capture would read them.
TEST_P(PartGatherOn, WeightsComeWithTheirIds) {
  for (const WeightType type : {WeightType::float32, WeightType::bfloat16}) {
    SCOPED_TRACE(weight_type_name(type));
    // Three rows of three ids, an odd number, with a gap after each row of weights.
    const Buffer ids = upload(*device, *stream, Ids{1, 2, 3, 4, 5, 6, 7, 8, 9});
    const bool whole = type == WeightType::float32;
    std::vector<std::uint16_t> halves;
    std::vector<std::uint32_t> bits;
    for (std::uint32_t i = 0; i < 12; ++i) {
      bits.push_back(i == 1 ? 0x7F81'0000
                            : (0x3F80'1111 + i * 0x0003'0000) & (whole ? ~0U : ~0xFFFFU));
      halves.push_back(static_cast<std::uint16_t>(bits.back() >> 16));
    }
    const Buffer weights =
        whole ? upload(*device, *stream, bits) : upload(*device, *stream, halves);
    Neighbours ranks(2, 1);
    PartGather gather(*device, ranks, 3, 4, 0, type);
    const std::vector<std::int64_t> parts{1, 3};
    const TopkIds found = gather.gather({.data = ids.data(),
                                         .type = IdType::int32,
                                         .rows = 3,
                                         .columns = 3,
                                         .row_stride = 3,
                                         .weights = {weights.data(), type, 4}},
                                        parts, *stream);
    EXPECT_EQ(ranks.given, (std::vector<std::int64_t>{6, 18}));
    ASSERT_EQ(found.row_stride, 6);
    EXPECT_EQ(found.weights.type, WeightType::float32);
    const auto words = download<std::uint32_t>(*device, *stream, found.data, 24);
    const auto* const first = static_cast<const std::uint32_t*>(found.data);
    const auto at =
        static_cast<std::size_t>(static_cast<const std::uint32_t*>(found.weights.data) - first);
    for (std::size_t row = 0; row < 4; ++row) {
      for (std::size_t k = 0; k < 3; ++k) {
        const std::uint32_t id = words[row * 6 + k];
        const std::uint32_t weight =
            words[at + row * static_cast<std::size_t>(found.weights.row_stride) + k];
        EXPECT_EQ(id, row == 0 ? static_cast<std::uint32_t>(kNothing) : (row - 1) * 3 + k + 1);
        EXPECT_EQ(weight,
                  row == 0 ? static_cast<std::uint32_t>(kNothing) : bits[(row - 1) * 4 + k]);
      }
    }
  }
}

TEST_P(PartGatherOn, RefusesOtherWeightsThanItWasMadeFor) {
  Neighbours ranks(2, 1);
  PartGather with(*device, ranks, 3, 4, 0, WeightType::float32);
  PartGather without(*device, ranks, 3, 4);
  const Buffer memory = device->allocate(64);
  const std::vector<std::int64_t> parts{1, 1};
  const auto call = [&](PartGather& gather, const TopkWeights& weights) {
    return [&gather, weights, &memory, &parts, this] {
      (void)gather.gather({memory.data(), IdType::int32, 1, 3, 3, weights}, parts, *stream);
    };
  };
  expect_throw<ArgumentError>(call(with, {}), {"none", "float32"});
  expect_throw<ArgumentError>(call(with, {memory.data(), WeightType::bfloat16, 3}), {"bfloat16"});
  expect_throw<ArgumentError>(call(with, {memory.data(), WeightType::float32, 2}), {"stride of 2"});
  expect_throw<ArgumentError>(call(with, {nullptr, WeightType::float32, 3}),
                              {"null, but have 1 rows"});
  expect_throw<ArgumentError>(call(without, {memory.data(), WeightType::float32, 3}), {"float32"});
  expect_throw<ArgumentError>(call(with, {memory.data(), static_cast<WeightType>(9), 3}),
                              {"unknown (9)"});
  expect_throw<ArgumentError>(call(with, {memory.data() + 2, WeightType::float32, 3}),
                              {"weights at 0x", "4 bytes"});
  EXPECT_TRUE(ranks.given.empty());
  EXPECT_NO_THROW(call(with, {memory.data(), WeightType::float32, 3})());
}

TEST_P(PartGatherOn, RefusesWhatDoesNotFit) {
  Neighbours ranks(2, 1);
  PartGather gather(*device, ranks, 2, 8, 1);
  const Buffer memory = device->allocate(64 * sizeof(std::int32_t));
  const TopkIds good{memory.data(), IdType::int32, 3, 3, 3};
  const auto call = [&](TopkIds part, const std::vector<std::int64_t>& parts) {
    return [&gather, part, parts, this] { (void)gather.gather(part, parts, *stream); };
  };
  EXPECT_NO_THROW(call(good, {5, 3})());
  ranks.given.clear();
  expect_throw<ArgumentError>(call(good, {5}), {"1 entries", "2 ranks"});
  expect_throw<ArgumentError>(call(good, {5, -1}), {"-1"});
  expect_throw<RangeError>(call(good, {6, 3}), {"6 + 3", "8"});
  expect_throw<ArgumentError>(call(good, {2, 4}), {"3 rows", "says 4"});
  TopkIds bad = good;
  bad.columns = 2;  // H27: undeclared ones would be taken for routes, or routes for shared experts
  expect_throw<ArgumentError>(call(bad, {5, 3}), {"2 columns", "expected are 3"});
  bad = good;
  bad.row_stride = 2;
  expect_throw<ArgumentError>(call(bad, {5, 3}), {"stride of 2"});
  bad = good;
  bad.data = memory.data() + 1;
  expect_throw<ArgumentError>(call(bad, {5, 3}), {"this rank's part: topk_ids at 0x", "4 bytes"});
  bad = good;
  bad.data = nullptr;
  expect_throw<ArgumentError>(call(bad, {5, 3}), {"null"});
  ranks.broken = true;
  expect_throw<TimeoutError>(call(good, {5, 3}), {"broken"});
  EXPECT_TRUE(ranks.given.empty()) << "something was queued";
  EXPECT_THROW(PartGather(*device, ranks, 0, 8), ArgumentError);
  EXPECT_THROW(PartGather(*device, ranks, 2, 0), ArgumentError);
  EXPECT_THROW(PartGather(*device, ranks, 2, 8, -1), ArgumentError);
}

class GatheredStepOn : public EndpointTest, public ::testing::WithParamInterface<DeviceMaker> {
 protected:
  std::unique_ptr<Device> device = GetParam()();
  std::unique_ptr<Stream> stream = device->make_stream();
};
INSTANTIATE_TEST_SUITE_P(Devices, GatheredStepOn, ::testing::ValuesIn(every_device()), device_name);

TEST_P(GatheredStepOn, FailsWithTheReasonWhereAPartDidNotCome) {  // H6
  endpoint.shape = ModelShape::uniform(1, 1, 16);
  Neighbours ranks(2, 0);
  PartGather gather(*device, ranks, 1, 4);
  Capturer capturer(make_shm_transport(*device, endpoint));
  capturer.bind(0);
  const Buffer ids = upload(*device, *stream, std::vector<std::int32_t>{3, 4});
  const Buffer slots = upload(*device, *stream, std::vector<Slot>{0, 1, 2, 3});
  const auto run = [&](Step step, std::vector<std::int64_t> parts) {
    capturer.begin_step({.step = step, .num_tokens = parts[0] + parts[1]}, *stream);
    capturer.capture(0, gather.gather({ids.data(), IdType::int32, 2, 1, 1}, parts, *stream),
                     *stream);
    capturer.publish(slots.as<const Slot>(), *stream);
    for (const StepFailed& failure : capturer.take_failures()) throw failure;
  };
  run(1, {2, 0});
  const std::string why = message_of<StepFailed>([&] { run(2, {2, 2}); });
  EXPECT_TRUE(contains(why, "token 2") || contains(why, "token 3")) << why;  // in any order
  EXPECT_TRUE(contains(why, "did not come")) << why;
  EXPECT_TRUE(contains(why, "check()")) << why;
}

TEST_P(GatheredStepOn, ARankThatOnlyCapturesPublishesNothing) {
  Capturer capturer(make_capture_only_transport(*device, endpoint));
  for (const int layer : endpoint.shape.moe_layers()) capturer.bind(layer);
  const Buffer ids = upload(*device, *stream, std::vector<std::int32_t>{3, 4});
  for (Step step = 1; step <= 3; ++step) {
    capturer.begin_step({.step = step, .num_tokens = 1}, *stream);
    for (const int layer : endpoint.shape.moe_layers()) {
      capturer.capture(layer, {ids.data(), IdType::int32, 1, 2, 2}, *stream);
    }
    const Buffer slots = upload(*device, *stream, std::vector<Slot>{5});
    capturer.publish(slots.as<const Slot>(), *stream);
    capturer.finalize(step, Milliseconds(0));
  }
  RouteSink sink{};
  EXPECT_NO_THROW(capturer.route_sink(endpoint.shape.moe_layers()[0], sink));  // no step is open
  stream->synchronize();
  endpoint.timeout = Milliseconds(1);
  EXPECT_THROW(make_shm_reader(endpoint), TimeoutError);
  EXPECT_THROW(make_device_reader(endpoint), TimeoutError);
  // It is a second cache for its model all the same (H12), but another stage's is not.
  EXPECT_THROW(Capturer(make_capture_only_transport(*device, endpoint)), OwnedError);
  endpoint.stage = 1;
  EXPECT_NO_THROW(Capturer(make_capture_only_transport(*device, endpoint)));
}

TEST_P(GatheredStepOn, RequestsThatSeveralRanksWouldHandOverAreRefused) {
  endpoint.stage = 1;
  expect_throw<ArgumentError>(
      [&] {
        (void)make_device_transport(*device, endpoint, {.host_cache = HostCache::per_request});
      },
      {"stage 1", "HostCache::scheduler"});
}

}  // namespace
}  // namespace moetap::test
