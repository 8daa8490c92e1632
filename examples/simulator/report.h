// What a run of the simulator found, as a table and as JSON.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine.h"

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
  SchedulerCounts counts;
  VerifierCounts rows;
  Percentiles worker_overhead_us;
  Percentiles visible_latency_us;
  Percentiles read_us_per_request;
  std::size_t bytes_per_row = 0;
  double wall_s = 0;

  // Something was served, every expected row was verified, and none was wrong.
  bool ok() const { return rows.expected > 0 && rows.wrong == 0 && rows.verified == rows.expected; }
};

// Adds up what the workers' engines found.
void summarize(const std::vector<EngineResult>& results, RunReport& report);

std::string to_table(const std::vector<RunReport>& runs);
std::string to_json(const std::vector<RunReport>& runs);

}  // namespace demo
