// One run of the simulator: a transport, its workers, the whole trace.
#pragma once

#include <moetap/shape.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "examples/simulator/protocol.h"
#include "examples/simulator/report.h"
#include "examples/simulator/trace.h"

namespace demo {

struct RunOptions {
  TransportKind transport = TransportKind::shm;
  moetap::ShmLayout layout = moetap::ShmLayout::native;
  bool rows_by_request = false;
  std::string device = "auto";
  int workers = 1;
  double step_ms = 1;
  double reject_rate = 0.3;
  EngineOptions engine;        // of each worker
  SchedulerOptions scheduler;  // of each worker
};

// Starts the workers, assigns the requests to them in turn, and serves them. Draws a progress bar
// if standard error is a terminal. Throws Interrupted once `stop` is set, or the first error of a
// worker or its engine. No worker outlives the call.
RunReport run_simulation(const RunOptions& options, const moetap::ModelShape& shape,
                         const Trace& trace, const std::atomic<bool>& stop);

}  // namespace demo
