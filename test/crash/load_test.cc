// Many readers and two workers for a while, then with readers that stall: no row is torn, and what
// that costs the workers (H24). MOETAP_LOAD_SECONDS makes it longer (`./dev soak load`).
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <string>

#include "test/crash/setup.h"
#include "test/ipc/buffer_lock.h"
#include "test/ipc/child_process.h"
#include "test/ipc/shared_object.h"

namespace moetap::crash {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;
using test::ChildProcess;

constexpr int kWorkers = 2;
constexpr Milliseconds kShortStall{10};
constexpr Milliseconds kBetweenStalls{40};
constexpr int kForEver = 1'000'000'000;

// Of the phase that the rest is compared with: 8 readers and 2 workers.
double seconds() {
  const char* set = std::getenv("MOETAP_LOAD_SECONDS");
  return set == nullptr ? 3 : std::strtod(set, nullptr);
}
// Of each other phase, on top.
double short_seconds() { return seconds() / 6; }

using Times = std::array<std::uint64_t, Shared::kTimes>;

// The time that so many of the calls took at most, by the upper end of its bucket.
double quantile_us(const Times& times, double share) {
  std::uint64_t all = 0;
  for (const std::uint64_t count : times) all += count;
  double seen = 0;
  for (std::size_t i = 0; i < times.size(); ++i) {
    seen += static_cast<double>(times[i]);
    if (times[i] != 0 && seen >= share * static_cast<double>(all)) {
      return std::exp2((static_cast<double>(i) + 1) / 8) / 1000;
    }
  }
  return 0;
}

class Load : public testing::Test {
 protected:
  // `readers` of each worker's own, all of one transport.
  void start(Transport transport, int readers, Milliseconds timeout) {
    for (int w = 0; w < kWorkers; ++w) {
      setups_.push_back({{transport, Side::worker, nullptr},
                         static_cast<std::uint64_t>(w) + 1,
                         {.instance = fmt::format("load-{}-{}", getpid(), w),
                          .shape = ModelShape::uniform(3, 2, 65536).with_repeated_experts(),
                          .num_slots = 64,
                          .max_tokens = 8,
                          .ring_depth = 512,
                          .timeout = timeout}});
      const crash::Setup& setup = setups_.back();
      Shared& shared = *shared_.emplace_back();
      workers_.emplace_back([&] { run_worker(setup, shared, 1, kForEver, true); });
      for (int r = 0; r < readers; ++r) {
        readers_.emplace_back([&] { run_reader(setup, shared, kForEver); });
      }
    }
    while (!all_attached()) usleep(1000);
  }

  // Runs for a while and prints what it was like. `stall` is called again and again meanwhile.
  template <class Stall>
  Times run(const char* what, double for_seconds, Stall&& stall) {
    const Times before = times();
    const std::uint64_t rows_before = rows();
    const std::uint64_t timeouts_before = timeouts();
    const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                        std::chrono::duration<double>(for_seconds));
    while (Clock::now() < end && all_running()) stall();
    Times spent = times();
    std::uint64_t calls = 0;
    for (std::size_t i = 0; i < spent.size(); ++i) calls += spent[i] -= before[i];
    std::printf(
        "%-55s %9llu steps, %10llu rows verified, publish p50 %.0f p99 %.0f max %.0f us, "
        "%llu time-outs\n",
        what, static_cast<unsigned long long>(calls),
        static_cast<unsigned long long>(rows() - rows_before), quantile_us(spent, 0.5),
        quantile_us(spent, 0.99), quantile_us(spent, 1),
        static_cast<unsigned long long>(timeouts() - timeouts_before));
    std::fflush(stdout);
    EXPECT_GT(calls, 0u);
    EXPECT_GT(rows(), rows_before);
    return spent;
  }

  void stop() {
    for (auto& shared : shared_) shared->stop = true;
    for (auto& process : workers_) EXPECT_EQ(process.join(), 0);
    for (auto& process : readers_) EXPECT_EQ(process.join(), 0);
  }

  std::uint64_t timeouts() const { return sum(&Shared::timeouts); }
  ChildProcess& reader(int number) { return readers_[static_cast<std::size_t>(number)]; }

  std::deque<crash::Setup> setups_;

 private:
  bool all_attached() const {
    for (const auto& shared : shared_) {
      if (shared->verified == 0) return false;
    }
    return true;
  }
  // A process that finds a row wrong ends.
  bool all_running() const {
    for (const auto& process : workers_) {
      if (process.ended()) return false;
    }
    for (const auto& process : readers_) {
      if (process.ended()) return false;
    }
    return true;
  }
  std::uint64_t sum(std::atomic<std::uint64_t> Shared::*count) const {
    std::uint64_t all = 0;
    for (const auto& shared : shared_) all += (*shared).*count;
    return all;
  }
  std::uint64_t rows() const { return sum(&Shared::rows); }
  Times times() const {
    Times all{};
    for (const auto& shared : shared_) {
      for (std::size_t i = 0; i < all.size(); ++i) all[i] += shared->publish_times[i];
    }
    return all;
  }

  std::deque<test::SharedObject<Shared>> shared_;
  std::deque<ChildProcess> workers_;
  std::deque<ChildProcess> readers_;
};

void pass(Milliseconds time) {
  usleep(static_cast<useconds_t>(std::chrono::duration_cast<microseconds>(time).count()));
}

TEST_F(Load, H24ShmEightReadersTwoWorkersAndAReaderThatStallsWithTheLock) {
  constexpr Milliseconds kTimeout{500};
  start(Transport::shm, 4, kTimeout);
  const auto hold = [&](Milliseconds time) {
    std::deque<test::BufferLock> locks;
    for (const crash::Setup& setup : setups_) locks.emplace_back(setup.endpoint).lock_shared();
    pass(time);
  };
  run("shm, 8 readers, 2 workers", seconds(), [] { pass(kShortStall); });
  run("shm, a reader stalls for 10 of 50 ms with the lock", short_seconds(), [&] {
    hold(kShortStall);
    pass(kBetweenStalls);
  });
  // Longer than the timeout: an error each timeout, and nothing worse.
  const std::uint64_t before = timeouts();
  const Times stuck =
      run("shm, a reader stalls for 3 times the timeout of 500 ms", short_seconds(), [&] {
        hold(3 * kTimeout);
        pass(kBetweenStalls);
      });
  EXPECT_GT(timeouts(), before);
  EXPECT_GE(quantile_us(stuck, 1), 1000.0 * static_cast<double>(kTimeout.count()));
  stop();
}

TEST_F(Load, H24DeviceTwoWorkersAndReadersThatStall) {
  start(Transport::device, 1, Milliseconds(10'000));
  run("device, 2 readers, 2 workers", short_seconds(), [] { pass(kShortStall); });
  run("device, each reader stalls for 10 of 50 ms", short_seconds(), [&] {
    for (int r = 0; r < kWorkers; ++r) ::kill(reader(r).pid(), SIGSTOP);
    pass(kShortStall);
    for (int r = 0; r < kWorkers; ++r) ::kill(reader(r).pid(), SIGCONT);
    pass(kBetweenStalls);
  });
  EXPECT_EQ(timeouts(), 0u);
  stop();
}

}  // namespace
}  // namespace moetap::crash
