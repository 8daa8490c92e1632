// The scheduler's side of one worker: keeps several steps in flight, and reads and checks the rows
// of ended requests.
#pragma once

#include <moetap/pending_rows.h>
#include <moetap/reader.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "examples/simulator/clients.h"
#include "examples/simulator/offload.h"
#include "examples/simulator/process.h"
#include "examples/simulator/protocol.h"
#include "examples/simulator/scheduler.h"
#include "examples/simulator/verifier.h"

namespace demo {

struct Interrupted : std::runtime_error {
  Interrupted() : std::runtime_error("interrupted") {}
};

// Shared by the engines of a run and the progress display.
struct Progress {
  std::atomic<bool> stop{false};          // asks the engines to throw Interrupted
  std::atomic<std::int64_t> finished{0};  // requests
};

struct EngineOptions {
  int async_depth = 2;   // steps in flight
  double follow_up = 0;  // see Clients
  OffloadOptions offload;
};

struct EngineResult {
  std::string device;
  SchedulerCounts counts;
  ClientCounts clients;
  VerifierCounts rows;
  std::uint64_t blocks_offloaded = 0;
  std::int64_t taken_early = 0;             // requests whose rows were read because a block was
                                            // reused
  std::vector<double> worker_overhead_us;   // one per step
  std::vector<double> visible_latency_us;   // one per step that the scheduler was waiting for
  std::vector<double> read_us_per_request;  // one per request whose rows were not taken early
};

class Engine {
 public:
  // Configures the worker and attaches to it.
  Engine(WorkerProcess& worker, const WorkerConfig& config, const EngineOptions& options,
         Scheduler& scheduler, Progress& progress);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Serves all requests.
  EngineResult run();

 private:
  struct Unread {
    std::shared_ptr<Sequence> sequence;
    std::int64_t end;  // of its rows
    BlockId block;     // that is held until they are read; -1: none
    Step since;
  };

  std::string start(const WorkerConfig& config);
  void attach(WorkerConfig config);
  void send(const StepPlan& plan);
  std::span<const std::byte> receive(Message expected);
  void complete_oldest();
  void stream(Sequence& sequence);
  void leave(std::vector<Ended> ended);
  void read_due(Step oldest);
  void read(const Unread& unread);
  moetap::Routes rows_of(const Unread& unread);
  // Repeats a call that has a timeout, while the worker is alive and the run is not interrupted.
  template <class Call>
  auto patiently(Call&& call);

  WorkerProcess& worker_;
  EngineOptions options_;
  Scheduler& scheduler_;
  Progress& progress_;
  moetap::Milliseconds timeout_;
  std::string device_;
  std::optional<moetap::RequestReader> by_request_;  // instead of reader_ and pending_
  std::optional<moetap::Reader> reader_;
  const bool has_steps_;  // not only rows, as in the wire layout
  std::optional<moetap::PendingRows> pending_;
  std::optional<Offload> offload_;
  Clients clients_;
  Verifier verifier_;
  EngineResult result_;
  std::deque<bool> published_;  // of the steps in flight: some rows are
  std::deque<Unread> unread_;
  Step completed_ = 0;
  std::vector<std::byte> message_;
};

}  // namespace demo
