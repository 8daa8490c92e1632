// The results of a simulator run, as a table and as JSON.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "examples/simulator/engine.h"

namespace demo {

struct Percentiles {
  double p50 = 0;
  double p99 = 0;
};

// By the nearest rank; zeros for no samples.
Percentiles percentiles(std::vector<double> samples);

// One transport, all workers together.
struct RunReport {
  std::string transport;
  std::string device;
  std::string model;
  std::string trace;
  std::int64_t requests = 0;
  std::int64_t requests_rejected = 0;
  std::int64_t async_depth = 0;
  SchedulerCounts counts;
  ClientCounts clients;
  VerifierCounts rows;
  std::uint64_t blocks_offloaded = 0;
  std::int64_t taken_early = 0;  // requests
  Percentiles worker_overhead_us;
  Percentiles visible_latency_us;
  Percentiles read_us_per_request;
  std::size_t bytes_per_row = 0;
  double wall_s = 0;

  std::int64_t bytes_published() const {
    return counts.rows_published * static_cast<std::int64_t>(bytes_per_row);
  }
  // Why the run is not a success, or "". In a successful run requests were served, and every
  // requested row was verified.
  std::string failure() const;
};

// Sums the results of the workers' engines.
void summarize(const std::vector<EngineResult>& results, RunReport& report);

std::string to_table(const std::vector<RunReport>& runs);
std::string to_json(const std::vector<RunReport>& runs);

}  // namespace demo
