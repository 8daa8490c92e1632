#include <moetap/types.h>

#include <gtest/gtest.h>

namespace moetap {
namespace {

TEST(RowState, FollowsFromTheStampAndTheOwnersWindow) {
  constexpr StepWindow window{5, 9};
  EXPECT_EQ(row_state(0, window), RowState::missing);
  EXPECT_EQ(row_state(4, window), RowState::stale);  // H9, H10, H29
  EXPECT_EQ(row_state(5, window), RowState::present);
  EXPECT_EQ(row_state(9, window), RowState::present);
  EXPECT_EQ(row_state(10, window), RowState::clobbered);  // H11
}

TEST(RowState, NeverStampedIsMissingInAnyWindow) {
  EXPECT_EQ(row_state(0, StepWindow{0, 9}), RowState::missing);
  EXPECT_EQ(row_state(0, StepWindow{}), RowState::missing);
}

TEST(IdType, HoldsIdsUpToItsLastValue) {
  EXPECT_TRUE(holds_ids(IdType::uint8, 256));
  EXPECT_FALSE(holds_ids(IdType::uint8, 257));
  EXPECT_TRUE(holds_ids(IdType::int16, 32768));
  EXPECT_FALSE(holds_ids(IdType::int16, 32769));
  EXPECT_TRUE(holds_ids(IdType::uint16, 65536));
  EXPECT_TRUE(holds_ids(IdType::int32, 65536));
}

TEST(IdType, NamesMatchTheirSizes) {
  EXPECT_EQ(id_type_name(IdType::uint8), "uint8");
  EXPECT_EQ(id_type_name(IdType::int64), "int64");
  EXPECT_EQ(id_bytes(IdType::uint16), 2u);
  EXPECT_EQ(id_bytes(IdType::int64), 8u);
}

}  // namespace
}  // namespace moetap
