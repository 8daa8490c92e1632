// Thousands of random histories of an engine, each row of each checked (H8-H11, H16-H19, H29).
#include <gtest/gtest.h>

#include <cstdlib>
#include <exception>

#include "random_engine.h"

namespace moetap {
namespace {

using test::RandomEngine;

std::uint64_t number_of(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// To replay one: MOETAP_SEED=number. To try many: MOETAP_SEEDS=count.
TEST(LedgerRandom, NoHistoryMakesAWrongRowClaimToBeRight) {
  const std::uint64_t chosen = number_of("MOETAP_SEED", 0);
  const std::uint64_t first = chosen == 0 ? 1 : chosen;
  const std::uint64_t last = chosen == 0 ? number_of("MOETAP_SEEDS", 3000) : chosen;
  RandomEngine::Counts counts;
  for (std::uint64_t seed = first; seed <= last; ++seed) {
    SCOPED_TRACE("MOETAP_SEED=" + std::to_string(seed));
    try {
      RandomEngine(seed, counts).run(60);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    ASSERT_FALSE(HasFailure());
  }
  if (last - first < 2999) return;
  // Everything happened, and often: else the above says little.
  for (const std::int64_t count :
       {counts.present, counts.missing, counts.stale, counts.clobbered, counts.hits,
        counts.preemptions, counts.aborts, counts.finished, counts.rejected, counts.corrected,
        counts.moves, counts.rows_moved, counts.copies, counts.fills, counts.flushes,
        counts.forgotten, counts.taken_early, counts.held_back, counts.failed_steps}) {
    EXPECT_GT(count, 1000);
  }
  EXPECT_GT(counts.present, counts.missing + counts.stale + counts.clobbered);
}

}  // namespace
}  // namespace moetap
