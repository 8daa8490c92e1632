// The cost of notifying another process: half a round trip through a word in shared memory, with a
// waiter that spins and one that sleeps in a futex.

#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdint>
#include <string>

#include "bench/benchmarks.h"
#include "bench/fixture.h"
#include "bench/process.h"
#include "ipc/internal/wait.h"

namespace moetap::bench {
namespace {

class PingPong {
 public:
  explicit PingPong(std::chrono::microseconds spin)
      : spin_(spin), process_([this] {
          for (std::uint32_t n = 1;; ++n) {
            await(board_->ping, n);
            wake(board_->ping_back);
          }
        }) {}

  void round_trip() {
    ++trips_;
    wake(board_->ping);
    while (!await(board_->ping_back, trips_)) process_.require_alive();
  }

 private:
  struct Board {
    alignas(64) WakeWord ping;
    alignas(64) WakeWord ping_back;
  };

  // wake() adds 1 to the word.
  bool await(WakeWord& word, std::uint32_t n) {
    return wait_until(
        word, std::chrono::steady_clock::now() + std::chrono::seconds(1),
        [&] { return word.value.load() == n; }, spin_);
  }

  std::chrono::microseconds spin_;
  Shared<Board> board_;
  std::uint32_t trips_ = 0;
  Process process_;
};

void run(benchmark::State& state, const std::string& how, std::chrono::microseconds spin) {
  auto& ping_pong = fixture<PingPong>("wake/" + how, spin);
  for ([[maybe_unused]] auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    ping_pong.round_trip();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    state.SetIterationTime(took.count() / 2);
  }
}

}  // namespace

void register_wake() {
  benchmark::RegisterBenchmark("wake/spin", run, "spin", std::chrono::seconds(1))->UseManualTime();
  benchmark::RegisterBenchmark("wake/sleep", run, "sleep", std::chrono::seconds(0))
      ->UseManualTime();
}

}  // namespace moetap::bench
