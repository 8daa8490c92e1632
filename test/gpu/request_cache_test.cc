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
  void put(std::uint64_t request, std::int64_t position, std::int64_t count, int run = 0) {
    const std::vector<Slot> slots(static_cast<std::size_t>(count), 5);
    cache.put(request, position, rows_of(position, count, run), slots);
  }

  void expect(std::uint64_t request, std::int64_t position, std::int64_t count, int run) {
    const RequestCache::Rows rows = cache.rows(request);
    const auto first = static_cast<std::size_t>(position - rows.position);
    const std::vector<std::byte> expected = rows_of(position, count, run);
    ASSERT_LE((first + static_cast<std::size_t>(count)) * kRowBytes, rows.rows.size());
    const auto got = rows.rows.subspan(first * kRowBytes, expected.size());
    EXPECT_EQ(std::vector(got.begin(), got.end()), expected);
    expect_states(request, position, count, RowState::present);
  }

  void expect_states(std::uint64_t request, std::int64_t position, std::int64_t count,
                     RowState state) {
    const RequestCache::Rows rows = cache.rows(request);
    for (std::int64_t i = position; i < position + count; ++i) {
      EXPECT_EQ(rows.states[static_cast<std::size_t>(i - rows.position)], state) << i;
    }
  }

  RequestCache cache{kRowBytes};
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
  const std::vector<Slot> slots = {4, ~Slot{0}, 6};
  cache.put(1, 0, rows_of(0, 3, 1), slots);
  expect(1, 0, 1, 1);
  expect_states(1, 1, 1, RowState::missing);
  expect(1, 2, 1, 1);
}

TEST_F(RequestCacheTest, LosesWhatAFailedStepComputedAgain) {
  put(1, 0, 8);
  cache.lose(1, 6, 4);
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

}  // namespace
}  // namespace moetap
