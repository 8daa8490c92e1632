// From the end of the forward pass in the worker until the scheduler, in another process, has read
// the step's rows.
#include <benchmark/benchmark.h>

#include <chrono>
#include <string>

#include "bench/benchmarks.h"
#include "bench/endpoint.h"
#include "bench/fixture.h"
#include "bench/scheduler.h"
#include "bench/worker.h"
#include "bench/workload.h"

namespace moetap::bench {
namespace {

struct EndToEnd {
  EndToEnd(const std::string& transport, const char* model)
      : EndToEnd(transport, endpoint(ModelShape::known(model))) {}
  EndToEnd(const std::string& transport, const Endpoint& endpoint)
      : scheduler(transport, endpoint), worker(transport, endpoint) {
    for (std::uint64_t i = 0; i < kWorkingSet / kMaxTokens; ++i) step(i, kMaxTokens);
  }

  double step(std::uint64_t i, std::int64_t tokens) {
    const std::int64_t offset = SlotMappings::offset(i, tokens);
    scheduler.expect(offset, tokens);
    const Step number = worker.forward(tokens);
    const auto start = Scheduler::Clock::now();
    worker.publish(offset);
    return std::chrono::duration<double>(scheduler.wait(number) - start).count();
  }

  Scheduler scheduler;  // first: it is forked before the worker has threads
  Worker worker;
};

void run(benchmark::State& state, const std::string& transport, const char* model,
         std::int64_t tokens) {
  auto& end_to_end = fixture<EndToEnd>("end_to_end/" + transport + "/" + model, transport, model);
  std::uint64_t i = 0;
  for ([[maybe_unused]] auto _ : state) state.SetIterationTime(end_to_end.step(i++, tokens));
}

}  // namespace

void register_end_to_end() {
  for (const char* model : kModels) {
    for (const char* transport : {"shm", "device"}) {
      for (const std::int64_t tokens : kTokens) {
        benchmark::RegisterBenchmark(name("end_to_end", transport, model, tokens).c_str(), run,
                                     transport, model, tokens)
            ->UseManualTime()
            ->Iterations(steps_of(tokens));
      }
    }
  }
}

}  // namespace moetap::bench
