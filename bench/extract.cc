// All rows of an ended request: Ledger::finish() and read_rows(), compared with one memcpy of the
// same bytes into new memory, which is allocated in the same way.
#include <moetap/ledger.h>
#include <moetap/read_rows.h>
#include <moetap/read_transport.h>
#include <moetap/slots.h>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <string>
#include <vector>

#include "bench/benchmarks.h"
#include "bench/endpoint.h"
#include "bench/fixture.h"
#include "bench/publisher.h"
#include "bench/workload.h"

namespace moetap::bench {
namespace {

constexpr std::array<std::int64_t, 3> kLengths{500, 4096, 32768};

// Requests are read in turn, so that all lengths cycle through equally many rows.
constexpr std::int64_t kRows = 32768;

using Clock = std::chrono::steady_clock;

template <class Call>
double seconds_of(Call&& call) {
  const auto start = Clock::now();
  call();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Requests of one length whose rows are present, in blocks from all over the cache.
class Finished {
 public:
  Finished(const std::string& transport, const ModelShape& shape, std::int64_t tokens)
      : tokens_(tokens),
        ledger_(kSlots / kBlockSize, kBlockSize),
        publish_(make_publisher(transport, endpoint(shape))),
        reader_(transport == "shm" ? make_shm_reader(endpoint(shape))
                                   : make_device_reader(endpoint(shape))),
        source_(random_rows(shape, kMaxTokens)) {
    const std::int64_t blocks = (tokens + kBlockSize - 1) / kBlockSize;
    const std::vector<BlockId> order = shuffled_blocks(kSlots);
    for (std::int64_t first = 0; first + blocks <= kRows / kBlockSize; first += blocks) {
      blocks_.emplace_back(order.begin() + first, order.begin() + first + blocks);
      compute(blocks_.back());
    }
  }

  // Admits another request whose whole prefix hits one of them, and finishes it.
  Routes extract(std::uint64_t i, double& seconds) {
    const std::vector<BlockId>& blocks = blocks_[i % blocks_.size()];
    const RequestId request(++requests_);
    ledger_.admit(
        {.request = request, .num_tokens = tokens_ + 1, .placement = {blocks, room(blocks)}});
    const auto start = Clock::now();
    const RowPlan plan = ledger_.finish(request, tokens_ + 1);
    Routes routes = read_rows(reader_, plan, Milliseconds(0));
    seconds = std::chrono::duration<double>(Clock::now() - start).count();
    return routes;
  }

 private:
  static std::int64_t room(const std::vector<BlockId>& blocks) {
    return static_cast<std::int64_t>(blocks.size()) * kBlockSize;
  }

  void compute(const std::vector<BlockId>& blocks) {
    const RequestId request(++requests_);
    ledger_.admit({.request = request, .num_tokens = room(blocks), .placement = {blocks, 0}});
    for (std::int64_t start = 0; start < room(blocks); start += kMaxTokens) {
      const TokenRange chunk{start, std::min(start + kMaxTokens, room(blocks))};
      ledger_.schedule(++step_, request, chunk);
      const auto bytes = static_cast<std::size_t>(chunk.size()) * reader_.shape().row_bytes();
      publish_(step_, slots_of(blocks, kBlockSize, chunk), std::span(source_).first(bytes));
      reader_.wait_for(step_, Milliseconds(0));
    }
    (void)ledger_.abort(request);
  }

  std::int64_t tokens_;
  Ledger ledger_;
  Publish publish_;
  Reader reader_;
  std::vector<std::byte> source_;
  std::vector<std::vector<BlockId>> blocks_;
  std::uint64_t requests_ = 0;
  Step step_ = 0;
};

void count_bytes(benchmark::State& state, const ModelShape& shape, std::int64_t tokens) {
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * shape.row_bytes()) *
                          tokens);
}

void extract(benchmark::State& state, const std::string& transport, const char* model,
             std::int64_t tokens) {
  const ModelShape shape = ModelShape::known(model);
  auto& finished =
      fixture<Finished>("extract/" + transport + "/" + model + "/" + std::to_string(tokens),
                        transport, shape, tokens);
  std::uint64_t i = 0;
  for ([[maybe_unused]] auto _ : state) {
    double seconds = 0;
    const Routes routes = finished.extract(i++, seconds);
    state.SetIterationTime(seconds);
    if (!routes.all_present()) state.SkipWithError("rows of a finished request are not present");
  }
  count_bytes(state, shape, tokens);
}

void copy(benchmark::State& state, const char* model, std::int64_t tokens) {
  const ModelShape shape = ModelShape::known(model);
  const std::vector<std::byte> rows = random_rows(shape, kRows);
  const std::size_t bytes = static_cast<std::size_t>(tokens) * shape.row_bytes();
  std::uint64_t i = 0;
  for ([[maybe_unused]] auto _ : state) {
    const auto first =
        rows.begin() + static_cast<std::ptrdiff_t>(i++ % (rows.size() / bytes) * bytes);
    std::vector<std::byte> result;
    state.SetIterationTime(seconds_of([&] {
      result.assign(first, first + static_cast<std::ptrdiff_t>(bytes));
      benchmark::DoNotOptimize(result.data());
      benchmark::ClobberMemory();
    }));
  }
  count_bytes(state, shape, tokens);
}

}  // namespace

void register_extract() {
  for (const char* model : kModels) {
    for (const std::int64_t tokens : kLengths) {
      benchmark::RegisterBenchmark(name("limit", "extract", model, tokens).c_str(), copy, model,
                                   tokens)
          ->UseManualTime();
      for (const char* transport : {"shm", "device"}) {
        benchmark::RegisterBenchmark(name("extract", transport, model, tokens).c_str(), extract,
                                     transport, model, tokens)
            ->UseManualTime();
      }
    }
  }
}

}  // namespace moetap::bench
