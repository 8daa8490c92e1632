// README's worker, as it is, with a model that throws, picks no expert, and a scheduler that is
// away: it must go on.
#include <moetap/read_transport.h>
#include <moetap/reader.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "readme_worker.h"
#include "test/ipc/child_process.h"
#include "test/ipc/message_of.h"
#include "test/ipc/test_endpoint.h"

namespace moetap {
namespace {

constexpr std::int64_t kTokens = 4;
constexpr Step kThrows = 2;  // in its forward pass
constexpr Step kFails = 3;   // an id of no expert
constexpr Step kFull = 5;    // where there is no room any more
constexpr Step kLast = 7;

class ReadmeWorker : public test::EndpointTest {
 protected:
  ReadmeWorker() {
    endpoint.ring_depth = 3;
    endpoint.timeout = Milliseconds(50);
  }

  // What routers leave in device memory, and the slots.
  static Buffer make_model(WorkersRoutes& worker) {
    const Buffer host = worker.device->allocate_pinned(kBytes);
    Buffer picks = worker.device->allocate(kBytes);
    auto* const ids = host.as<std::int32_t>();
    for (int i = 0; i < kTokens * 2; ++i) ids[i] = ids[8 + i] = i % 2 + 3;
    ids[8] = 16;
    for (int i = 0; i < kTokens; ++i) host.as<Slot>(64)[i] = Slot(7 * i);
    worker.stream->copy(picks.data(), host.data(), kBytes);
    worker.stream->synchronize();
    return picks;
  }

  void run(WorkersRoutes& worker, const Buffer& picks, Step step) const {
    worker.run({.step = step, .num_tokens = kTokens}, picks.as<const Slot>(64), [&] {
      for (const int layer : endpoint.shape.moe_layers()) {
        if (step == kThrows && layer == 1) throw std::runtime_error("the model is out of memory");
        worker.capture(layer, picks.as<std::int32_t>() + (step == kFails ? 8 : 0), kTokens);
      }
    });
  }

  static constexpr std::size_t kBytes = 64 + kTokens * sizeof(Slot);
};

TEST_F(ReadmeWorker, GoesOnAfterAThrowAFailedStepAndAFullRing) {
  testing::internal::CaptureStdout();
  WorkersRoutes worker(endpoint);
  const Buffer picks = make_model(worker);
  Reader reader(make_device_reader(endpoint));
  for (Step step = 1; step <= kFull; ++step)
    run(worker, picks, step);  // 1, 3 and 4 are in the ring
  while (reader.poll() < kFull) worker.stream->idle();
  for (Step step = kFull + 1; step <= kLast; ++step) run(worker, picks, step);
  worker.capturer.finalize(kLast, Milliseconds(20'000));
  run(worker, picks, kLast + 1);  // prints what came after its last step
  const std::string said = testing::internal::GetCapturedStdout();

  for (Step step = 1; step <= kLast; ++step) {
    const bool good = step != kThrows && step != kFails && step != kFull;
    try {
      reader.wait_for(step, Milliseconds(20'000));
      EXPECT_TRUE(good) << step;
    } catch (const StepFailed& failed) {
      EXPECT_FALSE(good) << failed.what();
    }
  }
  for (const char* text :
       {"the model is out of memory", "step 2 failed: the worker gave it up",
        "step 3 failed: layer 0, token 0: expert id 16 is outside",
        "waited 50 ms for a free record",
        "step 5 failed: the worker gave it up, since publish() failed: waited 50 ms"}) {
    EXPECT_NE(said.find(text), said.npos) << text << " is not in:\n" << said;
  }
  EXPECT_EQ(std::ranges::count(said, '\n'), 5) << said;

  std::vector<std::byte> row(endpoint.shape.row_bytes());
  RowState state{};
  const Slot slot = 21;
  const StepWindow window{kLast, kLast};
  reader.read({&slot, 1}, {&window, 1}, row, {&state, 1});
  EXPECT_EQ(state, RowState::present);
  EXPECT_EQ(row[0], std::byte{3});
}

// Its scheduler is another process, which is killed. The worker waits once for a successor.
TEST_F(ReadmeWorker, DoesNotWaitForASchedulerThatIsGone) {
  constexpr Step kRead = 11;    // no step of trouble
  constexpr Step kWaits = 15;   // 12, 13 and 14 are in the ring
  constexpr Step kBefore = 25;  // a successor is there
  constexpr Step kEnd = 27;
  constexpr Milliseconds kPatience{test::kPatienceMs};
  endpoint.timeout = kPatience;
  test::Signal ready, go;
  test::ChildProcess scheduler([&] {
    const auto reader = make_device_reader(endpoint);
    reader->wait_for(kRead, kPatience);
    ready.raise();
    for (;;) pause();
  });
  test::ChildProcess successor([&] {
    go.wait();
    const auto reader = make_device_reader(endpoint);
    reader->wait_for(14, kPatience);
    ready.raise();
    reader->wait_for(kEnd, kPatience);
    for (const Step step : {kWaits, kBefore}) {
      const std::string why =
          test::message_of<StepFailed>([&] { reader->wait_for(step, kPatience); });
      EXPECT_TRUE(test::contains(why, "its ring was full")) << why;
      EXPECT_FALSE(test::contains(why, "forward pass")) << why;
    }
    EXPECT_EQ(reader->dropped().count, kBefore - kWaits + 1);
    EXPECT_EQ(reader->dropped().given_up, 0u);
  });
  endpoint.timeout = Milliseconds(1500);

  WorkersRoutes worker(endpoint);
  const Buffer picks = make_model(worker);
  const auto run_all = [&](Step first, Step last) {
    testing::internal::CaptureStdout();
    const auto start = std::chrono::steady_clock::now();
    for (Step step = first; step <= last; ++step) run(worker, picks, step);
    const auto took = std::chrono::steady_clock::now() - start;
    return std::pair(took, testing::internal::GetCapturedStdout());
  };
  run_all(kRead, kRead);
  ready.wait();
  scheduler.kill();
  const auto [first, of_first] = run_all(kRead + 1, kWaits);
  EXPECT_GE(first, endpoint.timeout);
  EXPECT_TRUE(test::contains(of_first, "waited 1500 ms for a free record")) << of_first;
  EXPECT_TRUE(test::contains(of_first, "its reader is not there. Start a reader")) << of_first;
  const auto [later, of_later] = run_all(kWaits + 1, kBefore);
  EXPECT_LT(later, endpoint.timeout);
  EXPECT_TRUE(test::contains(of_later,
                             "step 25 failed: the worker gave it up, since publish() "
                             "failed: waited 0 ms for a free record"))
      << of_later;
  EXPECT_FALSE(test::contains(of_first + of_later, "forward pass")) << of_later;

  go.raise();
  ready.wait();
  const auto [after, of_after] = run_all(kBefore + 1, kEnd);
  EXPECT_EQ(of_after, "");
  worker.capturer.finalize(kEnd, kPatience);
  EXPECT_EQ(successor.join(), 0);
}

}  // namespace
}  // namespace moetap
