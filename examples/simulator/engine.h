// The scheduler's side of one worker: plans its steps, waits for their rows, and reads and checks
// the rows of requests that finish.
#pragma once

#include <moetap/reader.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "process.h"
#include "protocol.h"
#include "scheduler.h"
#include "verifier.h"

namespace demo {

struct Interrupted : std::runtime_error {
  Interrupted() : std::runtime_error("interrupted") {}
};

// Shared by the engines of a run and whoever watches them.
struct Progress {
  std::atomic<bool> stop{false};          // asks the engines to throw Interrupted
  std::atomic<std::int64_t> finished{0};  // requests
};

struct EngineResult {
  std::string device;
  SchedulerCounts counts;
  VerifierCounts rows;
  std::vector<double> worker_overhead_us;   // one a step
  std::vector<double> visible_latency_us;   // one a step that the scheduler was waiting for
  std::vector<double> read_us_per_request;  // one a finished request
};

class Engine {
 public:
  // Configures the worker and attaches to it.
  Engine(WorkerProcess& worker, const WorkerConfig& config, Scheduler& scheduler);

  // Serves all requests. While a step runs, the rows of requests that finished in earlier ones are
  // read; their blocks are given away only after that.
  EngineResult run(Progress& progress);

 private:
  void run_step(const StepPlan& plan, Progress& progress);
  void read_finished(Progress& progress);
  void wait_visible(Step step, Progress& progress);

  WorkerProcess& worker_;
  Scheduler& scheduler_;
  moetap::Milliseconds limit_;
  std::string device_;
  moetap::Reader reader_;
  Verifier verifier_;
  EngineResult result_;
  std::vector<std::byte> message_;
};

}  // namespace demo
