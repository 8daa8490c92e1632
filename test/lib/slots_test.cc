#include <moetap/error.h>
#include <moetap/slots.h>

#include <array>
#include <limits>
#include <random>
#include <vector>

#include "test/lib/throws.h"

namespace moetap {
namespace {

using test::expect_throw;
using Kind = KvCacheGroup::Kind;

TEST(Slots, FollowTheBlockTable) {
  const std::vector<BlockId> blocks{7, 0, 3};
  EXPECT_EQ(slots_of(blocks, 4, {0, 12}),
            (std::vector<Slot>{28, 29, 30, 31, 0, 1, 2, 3, 12, 13, 14, 15}));
  EXPECT_EQ(slots_of(blocks, 4, {3, 9}), (std::vector<Slot>{31, 0, 1, 2, 3, 12}));
  EXPECT_EQ(slots_of(blocks, 4, {5, 6}), (std::vector<Slot>{1}));
  EXPECT_TRUE(slots_of(blocks, 4, {12, 12}).empty());
  EXPECT_TRUE(slots_of({}, 4, {0, 0}).empty());
}

TEST(Slots, AgreeWithTheFormulaAtEveryPosition) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    const int block_size = static_cast<int>(random() % 20 + 1);
    std::vector<BlockId> blocks(random() % 9 + 1);
    for (BlockId& block : blocks) block = BlockId(random() % 1'000'000);
    const auto covered = static_cast<std::int64_t>(blocks.size()) * block_size;
    TokenRange range{static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(covered)), 0};
    range.end = range.start + static_cast<std::int64_t>(
                                  random() % static_cast<std::uint64_t>(covered - range.start + 1));
    const auto slots = slots_of(blocks, block_size, range);
    ASSERT_EQ(static_cast<std::int64_t>(slots.size()), range.size());
    for (std::int64_t p = range.start; p < range.end; ++p) {
      ASSERT_EQ(slots[static_cast<std::size_t>(p - range.start)],
                first_slot(blocks[static_cast<std::size_t>(p / block_size)], block_size) +
                    p % block_size);
    }
  }
}

TEST(Slots, OutsideTheBlocksAreAnErrorBeforeAnythingIsWritten) {
  const std::vector<BlockId> blocks{7, -1};
  std::array<Slot, 4> out;
  out.fill(99);
  expect_throw<RangeError>([&] { slots_of(blocks, 4, {5, 9}, out); }, {"[5, 9)", "[0, 8)"});
  expect_throw<RangeError>([&] { slots_of(blocks, 4, {-1, 3}, out); }, {"[-1, 3)"});
  expect_throw<RangeError>([&] { slots_of(blocks, 4, {4, 0}); }, {"[4, 0)"});
  expect_throw<RangeError>([&] { slots_of(blocks, 4, {2, 6}, out); }, {"-1", "index 1"});
  expect_throw<ArgumentError>([&] { slots_of(blocks, 4, {0, 3}, out); }, {"4 slots", "3"});
  expect_throw<ArgumentError>([&] { slots_of(blocks, 0, {0, 4}, out); }, {"block size 0"});
  EXPECT_EQ(out, (std::array<Slot, 4>{99, 99, 99, 99}));
}

TEST(Slots, BlockIdWhoseSlotsWouldOverflowIsAnError) {
  const std::vector<BlockId> blocks{BlockId(BlockId::max().value() / 4)};
  expect_throw<RangeError>([&] { slots_of(blocks, 4, {0, 1}); }, {"2305843009213693951"});
}

TEST(Slots, BlocksThatTheRangeDoesNotTouchMayBeAnything) {
  const std::vector<BlockId> blocks{-1, 2, -1};
  EXPECT_EQ(slots_of(blocks, 2, {2, 4}), (std::vector<Slot>{4, 5}));
}

TEST(AnchorGroup, IsTheFirstFullAttentionGroup) {  // H7
  const std::vector<KvCacheGroup> hybrid{{Kind::mamba, 16, {}},
                                         {Kind::sliding_window, 16, {}},
                                         {Kind::full_attention, 16, {}},
                                         {Kind::full_attention, 32, {}}};
  EXPECT_EQ(anchor_group(hybrid), 2u);
  const std::vector<KvCacheGroup> mla{{Kind::chunked_local, 16, {}}, {Kind::mla, 64, {}}};
  EXPECT_EQ(anchor_group(mla), 1u);
}

TEST(AnchorGroup, UniformGroupCountsIfAllItsMembersDo) {  // H7
  const KvCacheGroup full{Kind::full_attention, 16, {}};
  const KvCacheGroup window{Kind::sliding_window, 16, {}};
  const KvCacheGroup mla{Kind::mla, 16, {}};
  const std::vector<KvCacheGroup> groups{{Kind::uniform, 16, {}},
                                         {Kind::uniform, 16, {full, window}},
                                         {Kind::uniform, 16, {full, {Kind::uniform, 16, {mla}}}}};
  EXPECT_EQ(anchor_group(groups), 2u);
}

TEST(AnchorGroup, NoneIsAnErrorWithTheKindsGiven) {  // H7
  const std::vector<KvCacheGroup> groups{{Kind::mamba, 16, {}},
                                         {Kind::uniform, 16, {{Kind::sliding_window, 16, {}}}}};
  expect_throw<ArgumentError>([&] { anchor_group(groups); },
                              {"full attention", "mamba", "uniform (sliding window)"});
  expect_throw<ArgumentError>([] { anchor_group({}); }, {"none"});
}

}  // namespace
}  // namespace moetap
