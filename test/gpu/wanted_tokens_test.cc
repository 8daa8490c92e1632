#include "gpu/internal/wanted_tokens.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "test/gpu/scenario.h"

namespace moetap::test {
namespace {

constexpr std::int64_t kTokens = 24;

std::vector<std::uint32_t> list_of(const WantedTokens& wanted) {
  std::vector<std::uint32_t> list(static_cast<std::size_t>(wanted.count()));
  wanted.list(list.data());
  return list;
}

TEST(WantedTokens, AreListedInOrder) {
  const std::vector<TokenRange> ranges = {{1, 3}, {3, 4}, {9, 10}};
  WantedTokens wanted(kTokens);
  wanted.set({.step = 1, .num_tokens = 12, .wanted = ranges});
  EXPECT_FALSE(wanted.all());
  EXPECT_EQ(list_of(wanted), (std::vector<std::uint32_t>{1, 2, 3, 9}));
}

TEST(WantedTokens, AreAllWhereNothingIsSaidOrTheRangesMeet) {
  WantedTokens wanted(kTokens);
  wanted.set({.step = 1, .num_tokens = 12});
  EXPECT_TRUE(wanted.all());
  EXPECT_EQ(wanted.count(), 12);
  const std::vector<TokenRange> ranges = {{0, 5}, {5, 12}};
  wanted.set({.step = 2, .num_tokens = 12, .wanted = ranges});
  EXPECT_TRUE(wanted.all());
  wanted.set({.step = 3, .num_tokens = 13, .wanted = ranges});
  EXPECT_FALSE(wanted.all());
}

TEST(WantedTokens, AreSomePartsOfTheRequests) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 500; ++round) {
    std::vector<RequestSpan> requests;
    std::int64_t tokens = 0;
    while (tokens < kTokens) {
      const auto count =
          std::min<std::int64_t>(1 + static_cast<int>(random() % 7), kTokens - tokens);
      requests.push_back(
          {RequestId(random() % 3), static_cast<std::int64_t>(random() % 50), count});
      tokens += count;
    }
    const ScenarioStep drawn{.num_tokens = kTokens, .wanted = draw_wanted(random, kTokens)};
    StepInfo step{.step = 1, .num_tokens = kTokens, .requests = requests};
    if (drawn.wanted) step.wanted = *drawn.wanted;

    std::vector<std::pair<RequestId, std::int64_t>> expected;  // request, position
    std::int64_t token = 0;
    for (const RequestSpan& span : requests) {
      for (std::int64_t i = 0; i < span.count; ++i) {
        if (drawn.wants(token++)) expected.emplace_back(span.request, span.position + i);
      }
    }
    std::vector<WantedSpan> spans;
    assign_wanted_spans(step, spans);
    std::vector<std::pair<RequestId, std::int64_t>> got;
    for (const WantedSpan& wanted : spans) {
      const RequestSpan span = wanted.part();
      EXPECT_GT(span.count, 0);
      EXPECT_GE(wanted.tokens.start, 0);
      EXPECT_LE(wanted.tokens.end, wanted.span.count);
      for (std::int64_t i = 0; i < span.count; ++i) {
        got.emplace_back(span.request, span.position + i);
      }
    }
    ASSERT_EQ(got, expected) << "round " << round;
  }
}

}  // namespace
}  // namespace moetap::test
