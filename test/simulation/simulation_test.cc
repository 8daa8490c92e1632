// No history of an engine, its workers, their device and the channels between them makes a wrong
// row claim to be right, loses a row without a reason, gets stuck or leaves anything over.
#include "test/simulation/simulation.h"

#include <gtest/gtest.h>

namespace moetap::simulation {
namespace {

constexpr std::uint64_t kSeeds = 2000;

TEST(Simulation, NoHistoryMakesAWrongRowClaimToBeRight) {
  Counts counts;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const Outcome outcome = simulate(seed, counts);
    ASSERT_EQ(outcome.failure, "") << "to replay it: simulation --seed " << seed;
  }
  // Everything happened, and often: else the above says little.
  for (std::size_t i = 0; i < kEvents; ++i) {
    EXPECT_GT(counts[static_cast<Event>(i)], 50) << kEventNames[i];
  }
  EXPECT_GT(counts[Event::present],
            counts[Event::missing] + counts[Event::stale] + counts[Event::clobbered]);
}

TEST(Simulation, IsTheSameEachTimeThatASeedIsRun) {
  std::set<std::uint64_t> hashes;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    Counts once;
    Counts again;
    const Outcome first = simulate(seed, once);
    const Outcome second = simulate(seed, again);
    ASSERT_EQ(first.hash, second.hash) << seed;
    ASSERT_EQ(once, again) << seed;
    hashes.insert(first.hash);
  }
  EXPECT_EQ(hashes.size(), 100u) << "of 100 seeds";
}

}  // namespace
}  // namespace moetap::simulation
