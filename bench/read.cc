// The scheduler's end: reads the rows of `tokens` slots, with their states, from a buffer that has
// them.
#include <benchmark/benchmark.h>

#include <string>

#include "bench/benchmarks.h"
#include "bench/filled.h"
#include "bench/fixture.h"
#include "bench/workload.h"

namespace moetap::bench {
namespace {

void run(benchmark::State& state, const std::string& transport, const char* model,
         std::int64_t tokens) {
  auto& reader = fixture<FilledReader>("read/" + transport + "/" + model, transport,
                                       ModelShape::known(model), kSlots);
  std::uint64_t i = 0;
  for ([[maybe_unused]] auto _ : state) {
    reader.read(i++, tokens);
    benchmark::ClobberMemory();
  }
  if (!reader.all_present(tokens)) state.SkipWithError("rows that were published are not present");
  state.SetBytesProcessed(
      static_cast<std::int64_t>(state.iterations() * reader.shape().row_bytes()) * tokens);
}

}  // namespace

void register_read() {
  for (const char* model : kModels) {
    for (const char* transport : {"shm", "device"}) {
      for (const std::int64_t tokens : kTokens) {
        benchmark::RegisterBenchmark(name("read", transport, model, tokens).c_str(), run, transport,
                                     model, tokens);
      }
    }
  }
}

}  // namespace moetap::bench
