// The worker's end. publish/shm: from the end of the forward pass until the rows are visible, which
// is when the call returns. publish/device: the time that the call takes of the worker's, with a
// scheduler in another process that takes the steps in. publish_host/shm: the host half alone.
#include <moetap/shm_writer.h>

#include <benchmark/benchmark.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks.h"
#include "endpoint.h"
#include "fixture.h"
#include "scheduler.h"
#include "worker.h"
#include "workload.h"

namespace moetap::bench {
namespace {

struct Publishing {
  Publishing(const std::string& transport, const char* model)
      : Publishing(transport, endpoint(ModelShape::known(model))) {}
  Publishing(const std::string& transport, const Endpoint& endpoint) {
    if (transport == "device") scheduler.emplace(transport, endpoint);
    worker.emplace(transport, endpoint);
    for (std::uint64_t i = 0; i < kWorkingSet / kMaxTokens; ++i) step(i, kMaxTokens);
  }

  // Returns the seconds that publishing took.
  double step(std::uint64_t i, std::int64_t tokens) {
    const Step number = worker->forward(tokens);
    const auto start = Scheduler::Clock::now();
    worker->publish(SlotMappings::offset(i, tokens));
    const std::chrono::duration<double> took = Scheduler::Clock::now() - start;
    // The ring is empty again, as it would be after a forward pass that takes its time.
    if (scheduler) scheduler->wait(number);
    return took.count();
  }

  std::optional<Scheduler> scheduler;
  std::optional<Worker> worker;
};

void publish(benchmark::State& state, const std::string& transport, const char* model,
             std::int64_t tokens) {
  auto& publishing = fixture<Publishing>("publish/" + transport + "/" + model, transport, model);
  std::uint64_t i = 0;
  for ([[maybe_unused]] auto _ : state) state.SetIterationTime(publishing.step(i++, tokens));
}

struct Writing {
  explicit Writing(const char* model)
      : writer(endpoint(ModelShape::known(model))),
        row_bytes(ModelShape::known(model).row_bytes()),
        rows(random_rows(ModelShape::known(model), kMaxTokens)) {
    for (std::uint64_t i = 0; i < kWorkingSet / kMaxTokens; ++i) publish(i, kMaxTokens);
  }
  void publish(std::uint64_t i, std::int64_t tokens) {
    writer.publish(++step, mappings.step(i, tokens),
                   std::span(rows).first(static_cast<std::size_t>(tokens) * row_bytes));
  }

  SlotMappings mappings;
  ShmWriter writer;
  std::size_t row_bytes;
  std::vector<std::byte> rows;
  Step step = 0;
};

void publish_host(benchmark::State& state, const char* model, std::int64_t tokens) {
  auto& writing = fixture<Writing>(std::string("publish_host/") + model, model);
  std::uint64_t i = 0;
  for ([[maybe_unused]] auto _ : state) writing.publish(i++, tokens);
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * writing.row_bytes) *
                          tokens);
}

}  // namespace

void register_publish() {
  for (const char* model : kModels) {
    for (const char* transport : {"shm", "device"}) {
      for (const std::int64_t tokens : kTokens) {
        benchmark::RegisterBenchmark(name("publish", transport, model, tokens).c_str(), publish,
                                     transport, model, tokens)
            ->UseManualTime()
            ->Iterations(steps_of(tokens));
      }
    }
    for (const std::int64_t tokens : kTokens) {
      benchmark::RegisterBenchmark(name("publish_host", "shm", model, tokens).c_str(), publish_host,
                                   model, tokens);
    }
  }
}

}  // namespace moetap::bench
