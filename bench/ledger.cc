// The cost of the ledger for a scheduler: a decode step of all running requests, some of which end
// and make room for new ones; and the plan of an ended request.
#include <moetap/ledger.h>

#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "bench/benchmarks.h"
#include "bench/fixture.h"
#include "bench/workload.h"

namespace moetap::bench {
namespace {

constexpr std::int64_t kManySlots = 1024 * 1024;
constexpr std::int64_t kRequests = 256;

// The tokens of each request. Its prompt is one chunk of a step; then each step samples a token.
constexpr std::int64_t kPrompt = 64;
constexpr std::int64_t kOutput = 256;

// The simplest scheduler of an engine: it always has another request, and blocks come back in the
// order in which requests end.
class Decoding {
 public:
  Decoding(std::int64_t requests, std::int64_t num_slots, int block_size)
      : ledger_(num_slots / block_size, block_size), free_(shuffled_blocks(num_slots, block_size)) {
    // In nearly every step some request ends.
    for (std::int64_t i = 0; i < requests; ++i) {
      Request& request = running_.emplace_back();
      request.output = kOutput * (i + 1) / requests;
      admit(request);
    }
    for (std::int64_t i = 0; i < 2 * kOutput; ++i) step();  // until all requests have been replaced
  }

  void step() {
    ++step_;
    for (Request& request : running_) {
      const TokenRange positions{request.computed, request.tokens};
      if (positions.end > room(request)) {
        const BlockId block = take();
        request.blocks.push_back(block);
        ledger_.schedule(step_, request.id, positions, {&block, 1});
      } else {
        ledger_.schedule(step_, request.id, positions);
      }
      request.computed = positions.end;
      ledger_.accept(step_, request.id, ++request.tokens);
      if (request.tokens == kPrompt + request.output) replace(request);
    }
  }

 private:
  struct Request {
    RequestId id = 0;
    std::int64_t tokens = kPrompt;
    std::int64_t computed = 0;
    std::int64_t output = kOutput;
    std::vector<BlockId> blocks;
  };

  std::int64_t room(const Request& request) const {
    return static_cast<std::int64_t>(request.blocks.size()) * ledger_.block_size();
  }
  BlockId take() {
    const BlockId block = free_[next_];
    next_ = (next_ + 1) % free_.size();
    return block;
  }

  void admit(Request& request) {
    request.id = RequestId(++requests_);
    while (room(request) < kPrompt) request.blocks.push_back(take());
    ledger_.admit({.request = request.id, .num_tokens = kPrompt, .placement = {request.blocks, 0}});
  }

  void replace(Request& request) {
    benchmark::DoNotOptimize(ledger_.finish(request.id, request.tokens));
    for (const BlockId block : request.blocks) {
      free_[given_back_] = block;
      given_back_ = (given_back_ + 1) % free_.size();
    }
    request.blocks.clear();
    request.tokens = kPrompt;
    request.computed = 0;
    request.output = kOutput;
    admit(request);
  }

  Ledger ledger_;
  std::vector<Request> running_;
  std::vector<BlockId> free_;  // a ring: [next_, given_back_)
  std::size_t next_ = 0;
  std::size_t given_back_ = 0;
  std::uint64_t requests_ = 0;
  Step step_ = 0;
};

void step(benchmark::State& state, const std::string& key, std::int64_t requests,
          std::int64_t num_slots, int block_size) {
  auto& decoding = fixture<Decoding>(key, requests, num_slots, block_size);
  for ([[maybe_unused]] auto _ : state) decoding.step();
  state.SetItemsProcessed(static_cast<std::int64_t>(state.iterations()) * requests);
}

void finish(benchmark::State& state, std::int64_t tokens) {
  Ledger ledger(kManySlots / kBlockSize, kBlockSize);
  std::vector<BlockId> blocks = shuffled_blocks(kManySlots);
  blocks.resize(static_cast<std::size_t>((tokens + kBlockSize - 1) / kBlockSize));
  const auto room = static_cast<std::int64_t>(blocks.size()) * kBlockSize;
  ledger.admit({.request = 0, .num_tokens = room, .placement = {blocks, 0}});
  ledger.schedule(1, 0, {0, room});
  std::uint64_t requests = 0;
  for ([[maybe_unused]] auto _ : state) {
    const RequestId request(++requests);
    ledger.admit({.request = request, .num_tokens = tokens + 1, .placement = {blocks, room}});
    benchmark::DoNotOptimize(ledger.finish(request, tokens + 1));
  }
}

void add(const std::string& of, std::int64_t value, std::int64_t requests, std::int64_t num_slots,
         std::int64_t block_size) {
  const std::string key = "ledger/step/" + of + "/" + std::to_string(value);
  benchmark::RegisterBenchmark(key.c_str(), step, key, requests, num_slots,
                               static_cast<int>(block_size));
}

}  // namespace

void register_ledger() {
  for (const std::int64_t requests : {16, 64, 256, 1024, 4096}) {
    add("requests", requests, requests, kManySlots, kBlockSize);
  }
  for (std::int64_t slots = 128 * 1024; slots <= 32 * kManySlots; slots *= 16) {
    add("slots", slots, kRequests, slots, kBlockSize);
  }
  for (const std::int64_t block_size : {1, 16, 256}) {
    add("block_size", block_size, kRequests, kManySlots, block_size);
  }
  for (const std::int64_t tokens : {500, 4096, 32768}) {
    benchmark::RegisterBenchmark(("ledger/finish/tokens/" + std::to_string(tokens)).c_str(), finish,
                                 tokens);
  }
}

}  // namespace moetap::bench
