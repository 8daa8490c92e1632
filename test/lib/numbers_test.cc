#include "lib/internal/numbers.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace moetap::detail {
namespace {

TEST(Numbers, AreReadWhole) {
  EXPECT_EQ(parse_number<int>("0"), 0);
  EXPECT_EQ(parse_number<int>("-17"), -17);
  EXPECT_EQ(parse_number<std::int64_t>("9223372036854775807"), INT64_MAX);
  for (const char* none : {"", " 1", "1 ", "+1", "1.5", "0x10", "1e3", "one", "-"}) {
    EXPECT_EQ(parse_number<int>(none), std::nullopt) << '\'' << none << '\'';
  }
}

TEST(Numbers, ThatATypeDoesNotHoldAreNone) {
  EXPECT_EQ(parse_number<int>("2147483648"), std::nullopt);
  EXPECT_EQ(parse_number<std::int64_t>("9223372036854775808"), std::nullopt);
  EXPECT_EQ(parse_number<unsigned>("-1"), std::nullopt);
}

TEST(Numbers, AreRoundedUp) {
  EXPECT_EQ(round_up(0, 64), 0);
  EXPECT_EQ(round_up(1, 64), 64);
  EXPECT_EQ(round_up(64, 64), 64);
  EXPECT_EQ(round_up(65, 64), 128);
}

}  // namespace
}  // namespace moetap::detail
