#include "examples/simulator/run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <future>
#include <list>
#include <vector>

#include "examples/simulator/engine.h"
#include "examples/simulator/process.h"

namespace demo {
namespace {

constexpr moetap::Milliseconds kRedraw{100};

// Requests i, i + workers, i + 2 * workers, …
std::vector<Request> share_of(const Trace& trace, int worker, int workers) {
  std::vector<Request> share;
  for (auto i = static_cast<std::size_t>(worker); i < trace.requests.size();
       i += static_cast<std::size_t>(workers)) {
    share.push_back(trace.requests[i]);
  }
  return share;
}

WorkerConfig config_of(const RunOptions& options, const moetap::ModelShape& shape, int rank) {
  const SchedulerOptions& s = options.scheduler;
  return {.endpoint = {.instance = fmt::format("demo-{}", ::getpid()),
                       .dp_rank = rank,
                       .shape = shape,
                       .num_slots = s.num_blocks * s.block_size,
                       .max_tokens = s.max_tokens,
                       .layout = options.layout},
          .dp_size = options.workers,
          .block_size = s.block_size,
          .transport = options.transport,
          .rows_by_request = options.rows_by_request,
          .device = options.device,
          .step_ms = options.step_ms,
          .drafts = s.drafts > 0,
          .reject_rate = options.reject_rate};
}

class ProgressBar {
 public:
  ProgressBar(std::string title, std::int64_t total)
      : title_(std::move(title)), total_(total), terminal_(::isatty(STDERR_FILENO) == 1) {}
  ~ProgressBar() {
    if (terminal_) fmt::print(stderr, "\r\033[K");
  }
  void draw(std::int64_t done) const {
    if (!terminal_) return;
    constexpr std::int64_t width = 40;
    const auto full = static_cast<std::size_t>(total_ > 0 ? done * width / total_ : width);
    fmt::print(stderr, "\r{:<8}[{:<40}] {}/{} requests", title_, std::string(full, '#'), done,
               total_);
    std::fflush(stderr);
  }

 private:
  std::string title_;
  std::int64_t total_;
  bool terminal_;
};

// Collects every engine's result. If one fails the others stop; the first failure is thrown.
std::vector<EngineResult> collect(std::list<std::future<EngineResult>>& pending, Progress& progress,
                                  const ProgressBar& bar, const std::atomic<bool>& stop) {
  std::vector<EngineResult> results;
  std::exception_ptr failure;
  while (!pending.empty()) {
    if (stop) progress.stop = true;
    if (pending.front().wait_for(kRedraw) != std::future_status::ready) {
      pending.splice(pending.end(), pending, pending.begin());
    } else {
      try {
        results.push_back(pending.front().get());
      } catch (...) {
        if (!failure) failure = std::current_exception();
        progress.stop = true;
      }
      pending.pop_front();
    }
    bar.draw(progress.finished);
  }
  if (failure) std::rethrow_exception(failure);
  return results;
}

}  // namespace

RunReport run_simulation(const RunOptions& options, const moetap::ModelShape& shape,
                         const Trace& trace, const std::atomic<bool>& stop) {
  RunReport report;
  report.transport = transport_name(options.transport);
  report.trace = trace.name;
  report.requests = std::ssize(trace.requests);
  report.bytes_per_row = shape.row_bytes();
  report.async_depth = options.engine.async_depth;
  std::list<Scheduler> schedulers;
  for (int rank = 0; rank < options.workers; ++rank) {
    const Scheduler& added =
        schedulers.emplace_back(options.scheduler, share_of(trace, rank, options.workers));
    for (const std::string& why : added.rejected()) fmt::print(stderr, "rejected {}\n", why);
    report.requests_rejected += std::ssize(added.rejected());
  }

  // All processes are started before any thread.
  std::list<WorkerProcess> workers;
  for (int rank = 0; rank < options.workers; ++rank) workers.emplace_back(rank);

  Progress progress;
  const ProgressBar bar(report.transport, report.requests - report.requests_rejected);
  const auto began = std::chrono::steady_clock::now();
  std::list<std::future<EngineResult>> pending;
  auto scheduler = schedulers.begin();
  int rank = 0;
  for (WorkerProcess& worker : workers) {
    pending.push_back(std::async(std::launch::async, [&, &served = *scheduler++, rank = rank++] {
      const WorkerConfig config = config_of(options, shape, rank);
      return Engine(worker, config, options.engine, served, progress).run();
    }));
  }
  summarize(collect(pending, progress, bar, stop), report);
  report.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  for (WorkerProcess& worker : workers) worker.join();
  return report;
}

}  // namespace demo
