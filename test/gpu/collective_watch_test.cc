// Gathers that a device runs are held to their timeout, shown with work that never ends by
// itself.
#include "gpu/collective/collective_watch.h"

#include <moetap/error.h>
#include <moetap/host_device.h>

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "test/lib/throws.h"

namespace moetap {
namespace {

using namespace std::chrono_literals;
using test::expect_throw;

constexpr Milliseconds kTimeout{40};
constexpr std::chrono::seconds kPatience{5};

// Its operations end when they are let go, or aborted, as NCCL's do.
class Backend final : public CollectiveBackend {
 public:
  std::optional<std::string> error() override {
    return broken ? std::optional<std::string>("a cable is loose") : std::nullopt;
  }
  void abort() noexcept override {
    ++aborts;
    let_go();
  }
  void let_go() {
    open = true;
    open.notify_all();
  }
  void queue(Stream& stream) {
    stream.call([](void* gate) { static_cast<std::atomic<bool>*>(gate)->wait(false); }, &open);
  }

  std::atomic<bool> open{false};
  std::atomic<bool> broken{false};
  std::atomic<int> aborts{0};
};

class CollectiveWatchTest : public testing::Test {
 protected:
  void run() {
    watch.run(*stream, [this] { backend.queue(*stream); });
  }
  // Whether check() throws within patience.
  bool fails() {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (std::chrono::steady_clock::now() < deadline) {
      try {
        watch.check();
      } catch (const std::exception&) {
        return true;
      }
      std::this_thread::sleep_for(1ms);
    }
    return false;
  }

  Backend backend;
  std::unique_ptr<Device> device = make_host_device();
  std::unique_ptr<Stream> stream = device->make_stream();
  CollectiveWatch watch{*device, backend, kTimeout, "rank 1 of 4"};
};

TEST_F(CollectiveWatchTest, WhatEndsInTimeIsFine) {
  backend.let_go();
  for (int i = 0; i < 100; ++i) run();
  stream->synchronize();
  EXPECT_NO_THROW(watch.check());
  EXPECT_EQ(backend.aborts, 0);
}

TEST_F(CollectiveWatchTest, AnOperationThatDoesNotEndIsAborted) {
  run();
  const bool failed = fails();
  if (!failed) backend.let_go();  // or the next line would never end
  stream->synchronize();          // a host that is blocked after it goes on, as in a publish
  ASSERT_TRUE(failed);
  expect_throw<TimeoutError>([this] { watch.check(); }, {"rank 1 of 4", "40 ms", "missing"});
  EXPECT_EQ(backend.aborts, 1);
  expect_throw<TimeoutError>([this] { run(); }, {"rank 1 of 4"});
  expect_throw<TimeoutError>([this] { watch.until_here(*stream); }, {"rank 1 of 4"});
}

TEST_F(CollectiveWatchTest, TimeRunsFromWhenTheStreamComesToIt) {
  std::atomic<bool> forward_pass_done{false};
  stream->call([](void* gate) { static_cast<std::atomic<bool>*>(gate)->wait(false); },
               &forward_pass_done);
  run();
  std::this_thread::sleep_for(3 * kTimeout);
  EXPECT_NO_THROW(watch.check());
  backend.let_go();
  forward_pass_done = true;
  forward_pass_done.notify_all();
  stream->synchronize();
  EXPECT_NO_THROW(watch.check());
}

TEST_F(CollectiveWatchTest, AnErrorOfTheLibraryEndsEverything) {
  run();
  backend.broken = true;
  stream->synchronize();
  expect_throw<CollectiveError>([this] { watch.check(); }, {"rank 1 of 4", "a cable is loose"});
  EXPECT_EQ(backend.aborts, 1);
}

TEST_F(CollectiveWatchTest, AnErrorWhileQueueingEndsEverything) {
  EXPECT_THROW(watch.run(*stream, [] { throw CollectiveError("refused"); }), CollectiveError);
  EXPECT_EQ(backend.aborts, 1);
  expect_throw<CollectiveError>([this] { watch.check(); }, {"refused"});
}

TEST_F(CollectiveWatchTest, GraphsAreHeldToTheLimitWhereTheirLaunchIsTold) {
  stream->begin_capture();
  run();
  const std::unique_ptr<Graph> graph = stream->end_capture();
  std::this_thread::sleep_for(3 * kTimeout);
  EXPECT_NO_THROW(watch.check());
  stream->launch(*graph);
  watch.until_here(*stream);
  const bool failed = fails();
  if (!failed) backend.let_go();
  stream->synchronize();
  EXPECT_TRUE(failed);
  EXPECT_EQ(backend.aborts, 1);
}

// Launches queue up where the host is ahead: together they may take longer than the timeout.
TEST_F(CollectiveWatchTest, AGraphsTimeRunsFromTheEndOfTheOneBeforeIt) {
  constexpr int kLaunches = 4;
  constexpr Milliseconds kWide{1500};  // whatever else runs on this machine
  CollectiveWatch wide{*device, backend, kWide, "rank 1 of 4"};
  std::atomic<int> allowed{0};
  struct Turn {
    std::atomic<int>* allowed;
    int number;
  };
  std::vector<Turn> turns;
  turns.reserve(kLaunches);
  for (int i = 0; i < kLaunches; ++i) turns.push_back({&allowed, i});
  for (Turn& turn : turns) {
    stream->call(
        [](void* argument) {
          const auto& [open, number] = *static_cast<Turn*>(argument);
          for (int now = *open; now <= number; now = *open) open->wait(now);
        },
        &turn);
    wide.until_here(*stream);
  }
  for (int i = 1; i <= kLaunches; ++i) {
    std::this_thread::sleep_for(kWide / 3);  // each is in time
    allowed = i;
    allowed.notify_all();
  }
  stream->synchronize();
  EXPECT_NO_THROW(wide.check());
  EXPECT_EQ(backend.aborts, 0);
}

}  // namespace
}  // namespace moetap
