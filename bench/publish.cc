// The worker's end. publish/shm: from the end of the forward pass until the rows are visible, which
// is when the call returns. publish/device: the duration of the call in the worker, with a
// scheduler in another process that takes the steps in. publish_host/shm: only the host half.

#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "bench/benchmarks.h"
#include "bench/endpoint.h"
#include "bench/fixture.h"
#include "bench/publishing.h"
#include "bench/workload.h"
#include "ipc/internal/shm_writer.h"

namespace moetap::bench {
namespace {

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
    writer.publish(++step, unmarked(mappings.step(i, tokens)),
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
