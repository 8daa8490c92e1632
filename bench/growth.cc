// How cost grows with the buffer size (it should not: the working set is the same) and with the
// number of steps published before (it must not).
#include <benchmark/benchmark.h>

#include <string>

#include "bench/benchmarks.h"
#include "bench/filled.h"
#include "bench/fixture.h"
#include "bench/workload.h"

namespace moetap::bench {
namespace {

constexpr const char* kModel = kModels[0];
constexpr std::int64_t kStepTokens = 256;

FilledReader& slots_fixture(const std::string& transport, std::int64_t num_slots) {
  return fixture<FilledReader>("growth/slots/" + transport + "/" + std::to_string(num_slots),
                               transport, ModelShape::known(kModel), num_slots);
}

struct Aged : FilledReader {
  Aged(const std::string& transport, std::int64_t steps)
      : FilledReader(transport, ModelShape::known(kModel), kSlots) {
    for (std::int64_t i = 0; i < steps; ++i) publish(static_cast<std::uint64_t>(i), 1);
  }
};

FilledReader& steps_fixture(const std::string& transport, std::int64_t steps) {
  return fixture<Aged>("growth/steps/" + transport + "/" + std::to_string(steps), transport, steps);
}

using Fixture = FilledReader& (*)(const std::string&, std::int64_t);

void publish(benchmark::State& state, Fixture make, const std::string& transport,
             std::int64_t size) {
  FilledReader& reader = make(transport, size);
  std::uint64_t i = 0;
  for ([[maybe_unused]] auto _ : state) reader.publish(i++, kStepTokens);
}

void read(benchmark::State& state, Fixture make, const std::string& transport, std::int64_t size) {
  FilledReader& reader = make(transport, size);
  std::uint64_t i = 0;
  for ([[maybe_unused]] auto _ : state) {
    reader.read(i++, kStepTokens);
    benchmark::ClobberMemory();
  }
}

void add(const std::string& what, Fixture make, const std::string& transport, std::int64_t size) {
  const std::string rest = "_" + what + "/" + transport + "/" + std::to_string(size);
  benchmark::RegisterBenchmark(("publish" + rest).c_str(), publish, make, transport, size);
  benchmark::RegisterBenchmark(("read" + rest).c_str(), read, make, transport, size);
}

}  // namespace

void register_growth() {
  for (const char* transport : {"shm", "device"}) {
    for (std::int64_t slots = 64 * 1024; slots <= 1024 * 1024; slots *= 4) {
      add("slots", slots_fixture, transport, slots);
    }
    for (const std::int64_t steps : {100, 10'000, 100'000}) {
      add("steps", steps_fixture, transport, steps);
    }
  }
}

}  // namespace moetap::bench
