// The scheduler's side of a benchmark, in a process of its own.
#pragma once

#include <moetap/endpoint.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string_view>

#include "bench/process.h"
#include "bench/workload.h"
#include "ipc/internal/wait.h"

namespace moetap::bench {

// Takes in each step as it is published, and reads its rows if requested. Make it before the
// worker's end and before any thread. The process ends with this object.
class Scheduler {
 public:
  using Clock = std::chrono::steady_clock;  // CLOCK_MONOTONIC: the same in both processes

  // transport: "shm" or "device".
  Scheduler(std::string_view transport, const Endpoint& endpoint);

  // Call it before the step is published. The step's first slot in SlotMappings, and the number of
  // slots to read.
  void expect(std::int64_t offset, std::int64_t tokens);

  // Waits until the step was taken in and its rows were read; returns the time of that.
  Clock::time_point wait(Step step);

 private:
  struct Board {
    std::atomic<std::int64_t> offset{0};
    std::atomic<std::int64_t> tokens{0};
    std::atomic<Step> done{0};
    std::atomic<Clock::rep> done_at{0};
    WakeWord changed;
  };

  static void serve(Board& board, std::string_view transport, const Endpoint& endpoint);

  Shared<Board> board_;
  Process process_;
};

}  // namespace moetap::bench
