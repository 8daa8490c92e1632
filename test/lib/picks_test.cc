#include <moetap/picks.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace moetap {
namespace {

template <class Id>
class Picks : public testing::Test {};
using Ids = testing::Types<std::uint8_t, std::uint16_t, std::int16_t, std::int32_t, std::int64_t>;
TYPED_TEST_SUITE(Picks, Ids);

TYPED_TEST(Picks, RepeatWhereverTheTwoAre) {  // H32
  constexpr int kMost = 22;
  for (int top_k = 0; top_k <= kMost; ++top_k) {
    std::vector<TypeParam> ids;
    ids.reserve(kMost);
    for (int k = 0; k < top_k; ++k) ids.push_back(static_cast<TypeParam>(k * 3 % 100));
    EXPECT_FALSE(repeats_an_expert(ids.data(), top_k, 100));
    EXPECT_EQ(repeated_pick(ids.data(), top_k, 100), -1);
    for (int i = 0; i < top_k; ++i) {
      for (int j = i + 1; j < top_k; ++j) {
        std::vector<TypeParam> twice = ids;
        twice[static_cast<std::size_t>(j)] = twice[static_cast<std::size_t>(i)];
        EXPECT_TRUE(repeats_an_expert(twice.data(), top_k, 100)) << i << " and " << j;
        EXPECT_EQ(repeated_pick(twice.data(), top_k, 100), j);
      }
    }
  }
}

TYPED_TEST(Picks, ThatAreNoExpertsMayRepeat) {  // H2: -1 in a signed type
  const auto none = static_cast<TypeParam>(-1);
  const TypeParam missing[] = {none, 1, none, 2, none};
  EXPECT_FALSE(repeats_an_expert(missing, 5, 100));
  EXPECT_EQ(repeated_pick(missing, 5, 100), -1);
  const TypeParam both[] = {none, 1, none, 1};
  EXPECT_TRUE(repeats_an_expert(both, 4, 100));
  EXPECT_EQ(repeated_pick(both, 4, 100), 3);
  const TypeParam last[] = {99, 99};  // of 100 experts, and of 99
  EXPECT_TRUE(repeats_an_expert(last, 2, 100));
  EXPECT_FALSE(repeats_an_expert(last, 2, 99));
}

constexpr std::uint16_t kDistinct[] = {0, 1};
static_assert(!repeats_an_expert(kDistinct, 2, 65'536));
static_assert(repeated_pick(kDistinct, 2, 65'536) == -1);

}  // namespace
}  // namespace moetap
