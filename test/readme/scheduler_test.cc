// README's scheduler, as it is, beside a real worker that goes wrong: it must go on.
#include <moetap/capturer.h>
#include <moetap/host_device.h>
#include <moetap/slots.h>
#include <moetap/transport.h>

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "readme_scheduler.h"
#include "test/ipc/test_endpoint.h"

namespace moetap {
namespace {

constexpr int kBlockSize = 8;
constexpr std::int64_t kPrompt = 3;
constexpr RequestId kRequest = 7;
constexpr RequestId kNext = 8;

class ReadmeScheduler : public test::EndpointTest {
 protected:
  ReadmeScheduler() {
    endpoint.ring_depth = 2;
    endpoint.timeout = Milliseconds(test::kPatienceMs);
  }

  void make_worker(OnFull on_full) {
    capturer.emplace(make_device_transport(*device, endpoint, {.on_full = on_full}));
    for (const int layer : endpoint.shape.moe_layers()) capturer->bind(layer);
  }
  // One step of the request; `without` a layer it fails.
  void run(Step step, int without = -1) { run(step, positions(step), without); }
  void run(Step step, TokenRange tokens, int without = -1) {
    const auto count = static_cast<std::size_t>(tokens.size());
    const std::vector<Slot> slots = slots_of(blocks, kBlockSize, tokens);
    std::copy(slots.begin(), slots.end(), host.as<Slot>());
    stream->copy(device_slots.data(), host.data(), count * sizeof(Slot));
    stream->synchronize();
    for (std::size_t i = 0; i < 2 * count; ++i)
      host.as<std::int32_t>()[i] = static_cast<int>(i % 2);
    stream->copy(ids.data(), host.data(), 2 * count * sizeof(std::int32_t));
    capturer->begin_step({.step = step, .num_tokens = tokens.size()}, *stream);
    for (const int layer : endpoint.shape.moe_layers()) {
      if (layer == without) continue;
      capturer->capture(layer,
                        {.data = ids.data(), .rows = tokens.size(), .columns = 2, .row_stride = 2},
                        *stream);
    }
    capturer->publish(device_slots.as<const Slot>(), *stream);
    stream->synchronize();
  }
  // The first step is the prompt's, each other one of the token that was sampled before it.
  static TokenRange positions(Step step) {
    const std::int64_t end = kPrompt + static_cast<std::int64_t>(step.value()) - 1;
    return {step == 1 ? 0 : end - 1, end};
  }
  void schedule(SchedulersRoutes& scheduler, Step last) const {
    scheduler.start(kRequest, kPrompt, {.blocks = blocks});
    for (Step step = 1; step <= last; ++step) {
      scheduler.schedule(step, kRequest, positions(step));
      scheduler.sampled(step, kRequest, tokens(step));
    }
  }
  static std::int64_t tokens(Step last) { return positions(last).end + 1; }

  const std::vector<BlockId> blocks{3, 1, 4};
  std::unique_ptr<Device> device = make_host_device();
  std::unique_ptr<Stream> stream = device->make_stream();
  Buffer host = device->allocate_pinned(1024);
  Buffer ids = device->allocate(1024);
  Buffer device_slots = device->allocate(1024);
  std::optional<Capturer> capturer;
};

TEST_F(ReadmeScheduler, MaySleepForLongWhileItsWorkerWaits) {
  constexpr Step kSteps = 12;
  make_worker(OnFull::wait);
  SchedulersRoutes scheduler(endpoint, kBlockSize);
  schedule(scheduler, kSteps);
  std::thread worker([&] {
    for (Step step = 1; step <= kSteps; ++step) run(step);
  });
  for (int i = 0; i < 5; ++i) {
    std::this_thread::sleep_for(Milliseconds(50));
    scheduler.round();
  }
  EXPECT_TRUE(scheduler.finish(kRequest, tokens(kSteps)).has_value());
  worker.join();
}

TEST_F(ReadmeScheduler, GoesOnAfterAStepThatFailed) {
  make_worker(OnFull::wait);
  SchedulersRoutes scheduler(endpoint, kBlockSize);
  schedule(scheduler, 2);
  run(1);
  run(2, 1);
  EXPECT_FALSE(scheduler.finish(kRequest, tokens(2)).has_value());
}

TEST_F(ReadmeScheduler, GoesOnAfterAStepThatDoesNotComeInTime) {
  make_worker(OnFull::wait);
  SchedulersRoutes scheduler(endpoint, kBlockSize);
  schedule(scheduler, 2);
  run(1);
  EXPECT_FALSE(scheduler.finish(kRequest, tokens(2)).has_value());
  run(2);
  scheduler.start(kNext, kPrompt, {.blocks = blocks});
  scheduler.schedule(3, kNext, positions(1));
  scheduler.sampled(3, kNext, kPrompt + 1);
  run(3, {0, kPrompt});
  EXPECT_TRUE(scheduler.finish(kNext, kPrompt + 1).has_value());
}

TEST_F(ReadmeScheduler, GoesOnAfterAWorkerThatIsGone) {
  make_worker(OnFull::wait);
  SchedulersRoutes scheduler(endpoint, kBlockSize);
  schedule(scheduler, 2);
  run(1);
  capturer.reset();
  EXPECT_FALSE(scheduler.finish(kRequest, tokens(2)).has_value());
}

TEST_F(ReadmeScheduler, GoesOnAfterAFullRing) {
  constexpr Step kSteps = 12;
  make_worker(OnFull::drop);
  SchedulersRoutes scheduler(endpoint, kBlockSize);
  schedule(scheduler, kSteps);
  for (Step step = 1; step <= kSteps; ++step) run(step);  // no reader takes any in, nor waits
  EXPECT_EQ(capturer->dropped().count, kSteps.value() - 2);
  EXPECT_FALSE(scheduler.finish(kRequest, tokens(kSteps)).has_value());
  EXPECT_EQ(scheduler.reader.dropped().count, kSteps.value() - 2);
  EXPECT_EQ(scheduler.reader.dropped().last, kSteps);
}

}  // namespace
}  // namespace moetap
