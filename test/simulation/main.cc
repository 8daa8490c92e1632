// Runs simulations: one with its history, or many.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string>

#include "test/simulation/simulation.h"

namespace {

using namespace moetap::simulation;

constexpr const char* kUsage =
    "simulation --seed N                  replay one and print its history\n"
    "simulation [--first N] [--seeds N]   run many, from seed 1 and 1000 of them unless told\n"
    "simulation --calls N                 replay one and print its calls, as lines of JSON\n";

int replay(std::uint64_t seed, History::Prints prints) {
  Counts counts;
  const Outcome outcome = simulate(seed, counts, prints);
  std::fflush(stdout);
  fmt::print(prints == History::Prints::calls ? stderr : stdout, "seed {}: history {:016x}, {}\n",
             seed, outcome.hash, outcome.failure.empty() ? "all right" : outcome.failure);
  return outcome.failure.empty() ? 0 : 1;
}

int run_many(std::uint64_t first, std::uint64_t seeds) {
  Counts counts;
  for (std::uint64_t seed = first; seed < first + seeds; ++seed) {
    const Outcome outcome = simulate(seed, counts);
    if (outcome.failure.empty()) continue;
    fmt::print("seed {}: {}\nTo replay it: simulation --seed {}\n", seed, outcome.failure, seed);
    return 1;
  }
  fmt::print("{} seeds from {} on: all right\n", seeds, first);
  for (std::size_t i = 0; i < kEvents; ++i) {
    fmt::print("  {:>12} {}\n", counts[static_cast<Event>(i)], kEventNames[i]);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t first = 1;
  std::uint64_t seeds = 1000;
  std::optional<std::uint64_t> chosen;
  std::optional<std::uint64_t> calls;
  for (int i = 1; i < argc; i += 2) {
    const std::string option = argv[i];
    std::uint64_t* const value = option == "--seed"    ? &chosen.emplace()
                                 : option == "--calls" ? &calls.emplace()
                                 : option == "--seeds" ? &seeds
                                 : option == "--first" ? &first
                                                       : nullptr;
    char* end = nullptr;
    if (value != nullptr && i + 1 < argc) *value = std::strtoull(argv[i + 1], &end, 10);
    if (end == nullptr || end == argv[i + 1] || *end != '\0') {
      std::fputs(kUsage, stderr);
      return 2;
    }
  }
  if (calls) return replay(*calls, History::Prints::calls);
  return chosen ? replay(*chosen, History::Prints::text) : run_many(first, seeds);
}
