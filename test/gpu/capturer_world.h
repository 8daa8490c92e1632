// A Capturer over a transport that only notes what it is told.
#pragma once

#include <moetap/capturer.h>
#include <moetap/error.h>
#include <moetap/host_device.h>
#include <moetap/route_sink.h>
#include <moetap/topk_ids.h>

#include <gtest/gtest.h>

#include <array>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "test/lib/throws.h"

namespace moetap::test {

// Records the calls that got past the Capturer's checks.
class FakeTransport final : public CaptureTransport {
 public:
  struct Capture {
    int layer;
    std::int64_t rows;
    std::int64_t first_row;
  };

  const ModelShape& shape() const override { return shape_; }
  std::int64_t max_tokens() const override { return 16; }
  void begin_step(const StepInfo& step, std::int64_t row, Stream&) override {
    if (busy) throw TimeoutError("the step before cannot be told");
    steps.push_back(step.step);
    dp_row = row;
  }
  void capture(int layer, const TopkIds& ids, std::int64_t first_row, Stream&) override {
    captures.push_back({layer, ids.rows, first_row});
  }
  void route_sink(int layer, std::int64_t first_row, std::int64_t end_row, int shared_columns,
                  RouteSink& sink) override {
    sink.layer = layer;
    sink.first_row = first_row;
    sink.end_row = end_row;
    sink.shared_columns = shared_columns;
  }
  RouteOutput route_output(int layer) override { return {nullptr, layer, 2}; }
  void publish(const Slot*, Stream&) override {
    if (busy) throw TimeoutError("the ring is full");
    ++published;
  }
  void skip_step(Stream&) override {
    if (recording) throw StateError("the stream records a graph");
    ++skipped;
  }
  void give_up(const Slot* slots, Stream&) noexcept override {
    given_up.emplace_back(steps.back(), slots);
  }
  std::vector<StepFailed> take_failures() override { return {StepFailed(7, "of a fake")}; }
  std::uint64_t num_failed() const override { return 9; }
  void compare_all_picks() override { compares_all = true; }
  void finalize(Step step, Milliseconds) override { finalized = step; }
  void end_request(std::uint64_t request, RequestEnd) override { ended = request; }

  bool busy = false;
  bool recording = false;
  bool compares_all = false;
  std::vector<Step> steps;
  std::int64_t dp_row = -1;
  std::vector<Capture> captures;
  int published = 0;
  int skipped = 0;
  std::vector<std::pair<Step, const Slot*>> given_up;
  Step finalized = 0;
  std::uint64_t ended = 0;

 private:
  friend class CapturerTest;
  ModelShape shape_{{3, 5, 6}, 2, 300};
};

class CapturerTest : public testing::Test {
 protected:
  // Of this rank 1 of 3, with every layer bound.
  Capturer& make(RankLayout layout, int shared_expert_columns = 0) {
    auto owned = std::make_unique<FakeTransport>();
    transport = owned.get();
    capturer = std::make_unique<Capturer>(std::move(owned),
                                          CapturerOptions{1, 3, layout, shared_expert_columns});
    for (const int layer : {3, 5, 6}) capturer->bind(layer);
    return *capturer;
  }

  void set_weights(WeightType type) { transport->shape_ = transport->shape_.with_weights(type); }

  TopkIds ids(std::int64_t rows, std::int64_t columns = 2) const {
    return {memory.data(), IdType::int32, rows, columns, columns};
  }

  void expect_rows(std::int64_t rows, bool allowed, std::initializer_list<std::string_view> words,
                   std::int64_t passed_on = 0) {
    SCOPED_TRACE(rows);
    const std::size_t before = transport->captures.size();
    if (allowed) {
      EXPECT_NO_THROW(capturer->capture(5, ids(rows), stream));
      ASSERT_EQ(transport->captures.size(), before + 1);
      EXPECT_EQ(transport->captures.back().layer, 1);
      EXPECT_EQ(transport->captures.back().rows, passed_on == 0 ? rows : passed_on);
      return;
    }
    expect_throw<ArgumentError>([&] { capturer->capture(5, ids(rows), stream); },
                                {"layer 5", std::to_string(rows) + " rows"});
    expect_throw<ArgumentError>([&] { capturer->capture(5, ids(rows), stream); }, words);
    EXPECT_EQ(transport->captures.size(), before);
  }

  std::array<std::int32_t, 256> memory{};
  std::array<Slot, 16> slots{};
  std::unique_ptr<Device> device = make_host_device();
  std::unique_ptr<Stream> made = device->make_stream();
  Stream& stream = *made;  // which nothing is queued on
  FakeTransport* transport = nullptr;
  std::unique_ptr<Capturer> capturer;
};

}  // namespace moetap::test
