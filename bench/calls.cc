// Single calls, which bench/python_package.py makes through the Python package too.
#include <moetap/capturer.h>
#include <moetap/host_device.h>
#include <moetap/ledger.h>
#include <moetap/read_transport.h>
#include <moetap/reader.h>
#include <moetap/slots.h>
#include <moetap/transport.h>

#include <benchmark/benchmark.h>

#include <array>
#include <chrono>
#include <string>
#include <vector>

#include "bench/benchmarks.h"
#include "bench/endpoint.h"
#include "bench/fixture.h"
#include "bench/worker.h"
#include "bench/workload.h"

namespace moetap::bench {
namespace {

constexpr const char* kModel = "qwen3-30b-a3b";
constexpr std::int64_t kCallTokens = 256;  // of a step, of a request
constexpr std::int64_t kCallBlocks = kCallTokens / kBlockSize;

// A worker and a scheduler in one thread, with one request and one step that has arrived.
struct Calls {
  Calls()
      : channel(endpoint(ModelShape::known(kModel))),
        worker("device", channel),
        reader(make_device_reader(channel)),
        ledger(kSlots / kBlockSize, kBlockSize) {
    for (std::int64_t i = 0; i < kCallBlocks; ++i) blocks.emplace_back(i);
    worker.forward(kCallTokens);
    worker.publish(0);
    reader.wait_for(1, Milliseconds(1000));
    ledger.admit({.request = 1, .num_tokens = kCallTokens, .placement = {blocks, 0}});
    ledger.schedule(1, 1, {0, kCallTokens});
    rows.resize(channel.shape.row_bytes());
  }

  Endpoint channel;
  Worker worker;
  Reader reader;
  Ledger ledger;
  std::vector<BlockId> blocks;
  std::vector<std::byte> rows;
  std::array<RowState, 1> state{};
};

template <class Call>
void add(const char* name, Call call) {
  benchmark::RegisterBenchmark((std::string("call/") + name).c_str(),
                               [call](benchmark::State& state) {
                                 auto& calls = fixture<Calls>("call");
                                 for ([[maybe_unused]] auto _ : state) call(calls);
                               });
}

// Of one layer. The device gets to it later.
void capture(benchmark::State& state) {
  auto& calls = fixture<Calls>("call");
  for ([[maybe_unused]] auto _ : state) {
    state.SetIterationTime(calls.worker.time_captures(kCallTokens) /
                           calls.channel.shape.num_layers());
  }
}

}  // namespace

void register_calls() {
  add("poll", [](Calls& c) { benchmark::DoNotOptimize(c.reader.poll()); });
  add("wait_for", [](Calls& c) { c.reader.wait_for(1, Milliseconds(1000)); });
  add("worker_alive", [](Calls& c) { benchmark::DoNotOptimize(c.reader.worker_alive()); });
  add("read one row", [](Calls& c) {
    const Slot slot = 3;
    const StepWindow window{.first = 1, .last = 1};
    c.reader.read({&slot, 1}, {&window, 1}, c.rows, c.state);
    benchmark::ClobberMemory();
  });
  add("held", [](Calls& c) { benchmark::DoNotOptimize(c.ledger.held(3)); });
  add("schedule", [](Calls& c) { c.ledger.schedule(1, 1, {0, kCallTokens}); });
  add("accept", [](Calls& c) { c.ledger.accept(1, 1, kCallTokens + 1); });
  add("cached_rows", [](Calls& c) {
    benchmark::DoNotOptimize(c.ledger.cached_rows({c.blocks, kCallTokens}));
  });
  add("slots_of", [](Calls& c) {
    benchmark::DoNotOptimize(slots_of(c.blocks, kBlockSize, {0, kCallTokens}));
  });
  add("rows_since", [](Calls& c) { benchmark::DoNotOptimize(c.ledger.rows_since(1, 0)); });
  benchmark::RegisterBenchmark("call/capture", capture)->UseManualTime()->Iterations(200);
}

}  // namespace moetap::bench
