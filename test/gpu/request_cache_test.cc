#include "gpu/transport/request_cache.h"

#include <gtest/gtest.h>

#include <vector>

namespace moetap {
namespace {

constexpr std::size_t kRowBytes = 3;

// Rows of positions that say which position they are, and in which run they were computed.
std::vector<std::byte> rows_of(std::int64_t position, std::int64_t count, int run) {
  std::vector<std::byte> rows(static_cast<std::size_t>(count) * kRowBytes);
  for (std::size_t i = 0; i < rows.size(); i += kRowBytes) {
    const std::int64_t at = position + static_cast<std::int64_t>(i / kRowBytes);
    rows[i] = std::byte(at);
    rows[i + 1] = std::byte(run);
    rows[i + 2] = std::byte(at * 7);
  }
  return rows;
}

class RequestCacheTest : public ::testing::Test {
 protected:
  explicit RequestCacheTest(Drafts drafts = Drafts::chain) : cache(kRowBytes, drafts) {}

  void put(RequestId request, std::int64_t position, std::int64_t count, int run = 0) {
    put(++last_step, {{request, position, count}, {0, count}}, run);
  }
  // Rows that say in which place of the step they were computed.
  void put(Step step, const WantedSpan& wanted, int run) {
    const RequestSpan part = wanted.part();
    const std::vector<MarkedSlot> slots(static_cast<std::size_t>(part.count), MarkedSlot(5));
    cache.put(step, wanted, rows_of(part.position, part.count, run), slots);
  }

  void expect(RequestId request, std::int64_t position, std::int64_t count, int run) {
    const RequestCache::Rows rows = cache.rows(request);
    const auto first = static_cast<std::size_t>(position - rows.position);
    const std::vector<std::byte> expected = rows_of(position, count, run);
    ASSERT_LE((first + static_cast<std::size_t>(count)) * kRowBytes, rows.rows.size());
    const auto got = rows.rows.subspan(first * kRowBytes, expected.size());
    EXPECT_EQ(std::vector(got.begin(), got.end()), expected);
    expect_states(request, position, count, RowState::present);
  }

  void expect_states(RequestId request, std::int64_t position, std::int64_t count, RowState state) {
    const RequestCache::Rows rows = cache.rows(request);
    for (std::int64_t i = position; i < position + count; ++i) {
      EXPECT_EQ(rows.states[static_cast<std::size_t>(i - rows.position)], state) << i;
    }
  }

  RequestCache cache;
  Step last_step = 0;
};

TEST_F(RequestCacheTest, AppendsChunksToTheirRequests) {
  put(1, 0, 5);
  put(2, 0, 3, 9);
  put(1, 5, 4);
  expect(1, 0, 9, 0);
  expect(2, 0, 3, 9);
  EXPECT_EQ(cache.rows(1).position, 0);
  EXPECT_EQ(cache.rows(1).states.size(), 9u);
  EXPECT_EQ(cache.rows(2).states.size(), 3u);
}

TEST_F(RequestCacheTest, TakesNoMemoryForAPrefixHit) {  // H9
  put(1, 1000, 5);
  EXPECT_EQ(cache.rows(1).position, 1000);
  EXPECT_EQ(cache.rows(1).states.size(), 5u);
  expect(1, 1000, 5, 0);
}

TEST_F(RequestCacheTest, PositionsBetweenWhatWasPutAreMissing) {
  put(1, 2, 3);
  put(1, 8, 2);
  expect(1, 2, 3, 0);
  expect_states(1, 5, 3, RowState::missing);
  expect(1, 8, 2, 0);
}

TEST_F(RequestCacheTest, TakesLowerPositionsLater) {
  put(1, 8, 2);
  put(1, 2, 3);
  EXPECT_EQ(cache.rows(1).position, 2);
  expect(1, 2, 3, 0);
  expect_states(1, 5, 3, RowState::missing);
  expect(1, 8, 2, 0);
}

TEST_F(RequestCacheTest, LaterRunOverwritesAPosition) {  // H17
  put(1, 0, 8, 1);
  put(1, 5, 2, 2);
  expect(1, 0, 5, 1);
  expect(1, 5, 2, 2);
  expect(1, 7, 1, 1);
}

TEST_F(RequestCacheTest, RowWithAMissingRouteIsMissing) {
  put(1, 0, 3);
  const std::vector<MarkedSlot> slots = {MarkedSlot(4), MarkedSlot::missing(0), MarkedSlot(6)};
  cache.put(2, {{1, 0, 3}, {0, 3}}, rows_of(0, 3, 1), slots);
  expect(1, 0, 1, 1);
  expect_states(1, 1, 1, RowState::missing);
  expect(1, 2, 1, 1);
}

TEST_F(RequestCacheTest, LosesWhatAFailedStepComputedAgain) {
  put(1, 0, 8);
  cache.lose(2, {1, 6, 4});
  expect(1, 0, 6, 0);
  expect_states(1, 6, 4, RowState::missing);
  put(1, 6, 2, 3);
  expect(1, 6, 2, 3);
}

TEST_F(RequestCacheTest, ForgetsARequest) {  // H10
  put(1, 0, 8);
  put(2, 0, 8);
  cache.erase(1);
  EXPECT_TRUE(cache.rows(1).states.empty());
  put(1, 0, 2, 5);
  EXPECT_EQ(cache.rows(1).states.size(), 2u);
  cache.erase(1);
  cache.erase(2);
  cache.erase(3);
  EXPECT_EQ(cache.size(), 0u);
}

TEST_F(RequestCacheTest, KnowsARequestWhoseRowsWereCleared) {  // H10
  EXPECT_FALSE(cache.has(1));
  cache.clear(1);
  EXPECT_FALSE(cache.has(1));
  put(1, 0, 8);
  cache.clear(1);
  EXPECT_TRUE(cache.has(1));
  EXPECT_TRUE(cache.rows(1).states.empty());
  put(1, 1000, 2, 5);  // as if it were new
  EXPECT_EQ(cache.rows(1).position, 1000);
  EXPECT_EQ(cache.rows(1).states.size(), 2u);
  expect(1, 1000, 2, 5);
}

// Drafts may form a tree (H30): A at position 2, and B and C, alternatives for position 3, computed
// in places 2, 3 and 4 of step 1.
class RequestCacheTrees : public RequestCacheTest {
 protected:
  using Tokens = std::vector<std::int64_t>;

  RequestCacheTrees() : RequestCacheTest(Drafts::tree) {}

  static constexpr RequestSpan kTree{1, 2, 3, 2};

  // The row at `position` is the one that was computed in `place` of `run`.
  void expect_row(std::int64_t position, std::int64_t place, int run) {
    const RequestCache::Rows rows = cache.rows(1);
    const auto index = static_cast<std::size_t>(position - rows.position);
    ASSERT_LT(index, rows.states.size()) << position;
    EXPECT_EQ(rows.states[index], RowState::present) << position;
    const auto row = rows.rows.subspan(index * kRowBytes, kRowBytes);
    EXPECT_EQ(std::vector(row.begin(), row.end()), rows_of(place, 1, run)) << position;
  }
  void expect_missing(std::int64_t position) {
    const RequestCache::Rows rows = cache.rows(1);
    const auto index = static_cast<std::size_t>(position - rows.position);
    if (index < rows.states.size()) {
      EXPECT_EQ(rows.states[index], RowState::missing) << position;
    }
  }
};

TEST_F(RequestCacheTrees, TheFirstTokenHasItsRowAndDraftsHaveNone) {
  put(1, {kTree, {0, 3}}, 1);
  expect_row(2, 2, 1);
  expect_missing(3);
  expect_missing(4);
  EXPECT_EQ(cache.rows(1).doubtful, 3);  // where the rows end
}

TEST_F(RequestCacheTrees, ARowFollowsItsTokenToWhereItStands) {
  put(1, {kTree, {0, 3}}, 1);
  cache.accept(1, 1, 2, Tokens{0, 2});
  put(2, {{1, 4, 3, 2}, {0, 3}}, 2);
  expect_row(2, 2, 1);
  expect_row(3, 4, 1);
  expect_row(4, 4, 2);
  expect_missing(5);
}

TEST_F(RequestCacheTrees, AlsoWhileLaterStepsCameMeanwhile) {
  put(1, {kTree, {0, 3}}, 1);
  put(2, {{1, 4, 3, 2}, {0, 3}}, 2);
  put(3, {{1, 5, 1}, {0, 1}}, 3);
  expect_missing(3);
  cache.accept(1, 1, 2, Tokens{0, 2});
  cache.accept(2, 1, 4, Tokens{0});
  expect_row(3, 4, 1);
  expect_row(4, 4, 2);
  expect_row(5, 5, 3);
}

// Whichever is wrong, the later step's row stays.
TEST_F(RequestCacheTrees, NeverOverWhatALaterStepComputed) {
  put(1, {kTree, {0, 3}}, 1);
  put(2, {{1, 3, 1}, {0, 1}}, 2);
  cache.accept(1, 1, 2, Tokens{0, 2, 1});
  expect_row(3, 3, 2);
  expect_missing(4);
}

TEST_F(RequestCacheTrees, AStepThatWasPassedOverHasNoDraftsAnyMore) {
  put(1, {kTree, {0, 3}}, 1);
  put(2, {{1, 4, 3, 2}, {0, 3}}, 2);
  cache.accept(2, 1, 4, Tokens{0, 2});
  cache.accept(1, 1, 2, Tokens{0, 2});
  expect_missing(3);
  expect_row(5, 6, 2);
}

TEST_F(RequestCacheTrees, ARowThatIsMissingIsMissingWhereItStands) {
  cache.put(1, {kTree, {0, 3}}, rows_of(2, 3, 1),
            std::vector{MarkedSlot(4), MarkedSlot(5), MarkedSlot::missing(6)});
  cache.accept(1, 1, 2, Tokens{0, 2});
  expect_row(2, 2, 1);
  expect_missing(3);
}

TEST_F(RequestCacheTrees, OfWhatIsWantedOnly) {
  put(1, {kTree, {2, 3}}, 1);  // C
  EXPECT_TRUE(cache.has(1));
  cache.accept(1, 1, 2, Tokens{0, 2});
  EXPECT_EQ(cache.rows(1).position, 3);
  expect_row(3, 4, 1);
}

TEST_F(RequestCacheTrees, PartsOfASpanAreOne) {
  put(1, {{1, 2, 5}, {1, 2}}, 1);
  put(1, {{1, 2, 5}, {3, 5}}, 1);
  expect_row(3, 3, 1);
  expect_row(6, 6, 1);
  put(2, {{1, 4, 1}, {0, 1}}, 2);  // only the first, which was not wanted, is known to stand
  expect_missing(3);
  expect_row(4, 4, 2);
  expect_missing(5);
  expect_missing(6);
}

// No drafts were declared, but the next span begins at position 4.
TEST_F(RequestCacheTrees, OnlyTheFirstTokenOfAnUndeclaredTreeHasARow) {
  put(1, {{1, 2, 3}, {0, 3}}, 1);
  expect_row(4, 4, 1);
  EXPECT_EQ(cache.rows(1).doubtful, 3);
  put(2, {{1, 4, 1}, {0, 1}}, 2);
  expect_row(2, 2, 1);
  expect_missing(3);
  expect_row(4, 4, 2);
  EXPECT_EQ(cache.rows(1).doubtful, 5);
}

TEST_F(RequestCacheTrees, AlsoIfTheNextStepFails) {
  put(1, {{1, 2, 3}, {0, 3}}, 1);
  cache.lose(2, {1, 4, 1});
  expect_row(2, 2, 1);
  expect_missing(3);
  expect_missing(4);
}

TEST_F(RequestCacheTrees, WhatGoesOnWhereItEndedIsNoTree) {
  put(1, {{1, 2, 3}, {0, 3}}, 1);
  put(2, {{1, 5, 4}, {0, 4}}, 2);
  for (std::int64_t position = 2; position < 9; ++position) {
    expect_row(position, position, position < 5 ? 1 : 2);
  }
  EXPECT_EQ(cache.rows(1).doubtful, 6);
}

TEST_F(RequestCacheTrees, APreemptedRunLeavesNoDrafts) {  // H10
  put(1, {kTree, {0, 3}}, 1);
  cache.clear(1);
  cache.accept(1, 1, 2, Tokens{0, 2});
  EXPECT_TRUE(cache.rows(1).states.empty());
}

}  // namespace
}  // namespace moetap
