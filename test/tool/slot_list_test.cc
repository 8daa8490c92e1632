#include "tool/slot_list.h"

#include <moetap/types.h>

#include <gtest/gtest.h>

#include <vector>

namespace moetap {
namespace {

using Slots = std::vector<Slot>;

TEST(SlotList, HasSlotsAndRangesInTheirOrder) {
  EXPECT_EQ(tool::parse_slots("7", 8), (Slots{7}));
  EXPECT_EQ(tool::parse_slots("5-7,0,2-2", 8), (Slots{5, 6, 7, 0, 2}));
  EXPECT_EQ(tool::parse_slots("all", 3), (Slots{0, 1, 2}));
}

}  // namespace
}  // namespace moetap
