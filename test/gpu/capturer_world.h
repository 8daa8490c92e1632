// A Capturer over a transport that only notes what it is told.
#pragma once

#include <moetap/capturer.h>
#include <moetap/error.h>
#include <moetap/host_device.h>
#include <moetap/route_sink.h>
#include <moetap/topk_ids.h>

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpu/internal/device_cache.h"
#include "gpu/internal/snapshot.h"
#include "gpu/transport/step_failures.h"
#include "test/gpu/recording_stream.h"
#include "test/lib/throws.h"

namespace moetap::test {

// Of models of its own each, since a process captures a model once. Host memory serves all.
class FakeTransport final : public Transport {
 public:
  explicit FakeTransport(WeightType weights = WeightType::none)
      : Transport(device(), endpoint(weights)) {}

  void begin(const StepInfo& step) override {
    if (busy) throw TimeoutError("the step before cannot be told");
    steps.push_back(step.step);
  }
  void deliver(const Snapshot&, Stream&) override {
    if (busy) throw TimeoutError("the ring is full");
    ++published;
  }
  void give_up(const Snapshot& step, std::string_view why, Stream&) noexcept override {
    given_up.emplace_back(step.step(), step.slot_mapping());
    failures().add(step.step(), why);
  }
  void finalize(Step step, Milliseconds) override { finalized = step; }
  void end_request(RequestId request, RequestEnd) override { ended = request; }

  bool busy = false;
  std::vector<Step> steps;
  int published = 0;
  std::vector<std::pair<Step, const Slot*>> given_up;
  Step finalized = 0;
  RequestId ended = 0;

 private:
  static Device& device() {
    static const std::unique_ptr<Device> host = make_host_device();
    return *host;
  }
  static Endpoint endpoint(WeightType weights) {
    static std::atomic<int> number{0};
    return {.instance = "fake-" + std::to_string(++number),
            .shape = ModelShape({3, 5, 6}, 2, 300).with_weights(weights),
            .num_slots = 64,
            .max_tokens = 16};
  }
};

class CapturerTest : public testing::Test {
 protected:
  // Of this rank 1 of 3, with every layer bound.
  Capturer& make(RankLayout layout, int shared_expert_columns = 0,
                 WeightType weights = WeightType::none) {
    auto owned = std::make_unique<FakeTransport>(weights);
    transport = owned.get();
    stream = {};
    capturer = std::make_unique<Capturer>(std::move(owned),
                                          CapturerOptions{1, 3, layout, shared_expert_columns});
    for (const int layer : {3, 5, 6}) capturer->bind(layer);
    return *capturer;
  }

  TopkIds ids(std::int64_t rows, std::int64_t columns = 2) const {
    return {memory.data(), IdType::int32, rows, columns, columns};
  }

  void expect_rows(std::int64_t rows, bool allowed, std::initializer_list<std::string_view> words,
                   std::int64_t passed_on = 0) {
    SCOPED_TRACE(rows);
    const std::size_t before = stream.captures.size();
    if (allowed) {
      EXPECT_NO_THROW(capturer->capture(5, ids(rows), stream));
      ASSERT_EQ(stream.captures.size(), before + 1);
      EXPECT_EQ(stream.captures.back().layer, 1);
      EXPECT_EQ(stream.captures.back().rows, passed_on == 0 ? rows : passed_on);
      return;
    }
    expect_throw<ArgumentError>([&] { capturer->capture(5, ids(rows), stream); },
                                {"layer 5", std::to_string(rows) + " rows"});
    expect_throw<ArgumentError>([&] { capturer->capture(5, ids(rows), stream); }, words);
    EXPECT_EQ(stream.captures.size(), before);
  }

  std::array<std::int32_t, 256> memory{};
  std::array<Slot, 16> slots{};
  RecordingStream stream;
  FakeTransport* transport = nullptr;
  std::unique_ptr<Capturer> capturer;
};

}  // namespace moetap::test
