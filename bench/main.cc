#include <benchmark/benchmark.h>

#include "bench/benchmarks.h"
#include "bench/fixture.h"

int main(int argc, char** argv) {
  using namespace moetap::bench;
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  register_limits();
  register_capture();
  register_publish();
  register_optin();
  register_read();
  register_end_to_end();
  register_wake();
  register_growth();
  register_ledger();
  register_extract();
  register_calls();
  benchmark::RunSpecifiedBenchmarks();
  current_fixture().clear();
  benchmark::Shutdown();
}
