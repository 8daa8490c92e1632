// The cost of publishing if only some requests want their rows: all, every other one, one in 32,
// none. Each alternates with steps of which all rows are wanted; of_all is the ratio of the two
// medians.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <string>
#include <vector>

#include "bench/benchmarks.h"
#include "bench/fixture.h"
#include "bench/publishing.h"

namespace moetap::bench {
namespace {

constexpr const char* kModel = "qwen3-30b-a3b";
constexpr std::int64_t kRequestTokens = 64;

struct Share {
  const char* name;
  std::int64_t one_in;  // requests; 0: none
};
constexpr Share kShares[] = {{"all", 1}, {"half", 2}, {"1of32", 32}, {"none", 0}};

// The tokens per request: kRequestTokens, or fewer so that the step has one_in requests.
std::vector<TokenRange> wanted_tokens(const Share& share, std::int64_t tokens) {
  std::vector<TokenRange> wanted;
  if (share.one_in == 0) return wanted;
  const std::int64_t request = std::min(kRequestTokens, tokens / share.one_in);
  for (std::int64_t start = 0; start < tokens; start += request * share.one_in) {
    wanted.push_back({start, start + request});
  }
  return wanted;
}

double median(std::vector<double>& values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

void optin(benchmark::State& state, const std::string& transport, const Share& share,
           std::int64_t tokens) {
  auto& publishing = fixture<Publishing>("optin/" + transport, transport, kModel);
  const std::vector<TokenRange> wanted = wanted_tokens(share, tokens);
  std::vector<double> some;
  std::vector<double> all;
  std::uint64_t i = 0;
  for ([[maybe_unused]] auto _ : state) {
    const double seconds = publishing.step(
        i, tokens, share.one_in == 1 ? std::nullopt : std::optional(std::span(wanted)));
    state.SetIterationTime(seconds);
    some.push_back(seconds);
    all.push_back(publishing.step(i++, tokens));
  }
  state.counters["of_all"] = median(some) / median(all);
}

}  // namespace

void register_optin() {
  for (const char* transport : {"shm", "device"}) {
    for (const std::int64_t tokens : {256, 8192}) {
      for (const Share& share : kShares) {
        benchmark::RegisterBenchmark(name("optin", transport, share.name, tokens).c_str(), optin,
                                     transport, share, tokens)
            ->UseManualTime()
            ->Iterations(steps_of(tokens));
      }
    }
  }
}

}  // namespace moetap::bench
