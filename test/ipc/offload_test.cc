// Rows that follow KV blocks to a store and back (H8, H9).
#include <moetap/error.h>
#include <moetap/offload.h>

#include <limits>
#include <memory>
#include <string>

#include "test/lib/ledger_world.h"

namespace moetap {
namespace {

using test::Blocks;
using test::expect_throw;

class OffloadTest : public test::LedgerWorld {
 protected:
  static BlockStoreOptions options(std::size_t blocks) {
    BlockStoreOptions options{
        .shape = test::number_shape(), .block_size = kBlock, .max_bytes = 0, .model_version = ""};
    options.max_bytes = blocks * options.block_bytes();
    return options;
  }
  void SetUp() override {
    admit(1, 8, {1, 2});
    compute(1, 1, {1, 2}, {0, 8});
  }
  bool store_it(const BlockKey& key, BlockId block) {
    return store_block(*store, key, ledger, reader, block, kNow);
  }

  std::unique_ptr<BlockStore> store = make_memory_block_store(options(4));
  const std::vector<BlockKey> keys{BlockKey("0-3"), BlockKey("4-7")};
};

TEST_F(OffloadTest, RowsComeBackIntoOtherBlocks) {
  EXPECT_TRUE(store_it(keys[0], 1) && store_it(keys[1], 2));
  ledger.finish(1, 9);
  admit(2, 4, {1});  // the blocks are used again
  compute(2, 2, {1}, {0, 4});

  admit(3, 9, {5, 6, 7});
  EXPECT_EQ(load_blocks(*store, keys, ledger, reader, 3, 3, 0, kNow), 2);
  compute(4, 3, {5, 6, 7}, {8, 9});
  EXPECT_EQ(read(ledger.finish(3, 10)), "P1 P1 P1 P1 P1 P1 P1 P1 P4");
}

TEST_F(OffloadTest, WhatTheStoreDoesNotHaveIsMissing) {  // H9
  EXPECT_TRUE(store_it(keys[1], 2));
  ledger.finish(1, 9);
  admit(3, 9, {1, 2, 7});  // where older rows of the same positions are
  EXPECT_EQ(load_blocks(*store, keys, ledger, reader, 3, 3, 0, kNow), 1);
  compute(4, 3, {1, 2, 7}, {8, 9});
  EXPECT_EQ(read(ledger.finish(3, 10)), "missing missing missing missing P1 P1 P1 P1 P4");
}

TEST_F(OffloadTest, OnlyWholeBlocksAreStored) {
  admit(2, 4, {3});
  compute(2, 2, {3}, {0, 3});
  EXPECT_FALSE(store_it(BlockKey("x"), 3));
  EXPECT_EQ(store->stats().blocks, 0u);
  ledger.flush();
  EXPECT_FALSE(store_it(keys[0], 1));  // H29
}

TEST_F(OffloadTest, AFullStoreIsNoError) {
  store = make_memory_block_store(options(1));
  EXPECT_TRUE(store_it(keys[0], 1));
  EXPECT_TRUE(store_it(keys[0], 1));  // is there already
  ASSERT_TRUE(store->hold(keys[0]));
  EXPECT_FALSE(store_it(keys[1], 2));
}

TEST_F(OffloadTest, LoadsNothingForWhoDidNotAsk) {
  EXPECT_TRUE(store_it(keys[0], 1));
  ledger.admit(
      {.request = 2, .num_tokens = 5, .placement = {Blocks{5, 6}, 0}, .wants_rows = false});
  EXPECT_EQ(load_blocks(*store, {&keys[0], 1}, ledger, reader, 2, 2, 0, kNow), 0);
  EXPECT_EQ(store->stats().hits, 0u);
}

TEST_F(OffloadTest, WaitsForStepsInFlight) {
  admit(2, 4, {3});
  ledger.schedule(2, 2, {0, 4});
  expect_throw<TimeoutError>([&] { store_it(keys[0], 3); }, {"step 2"});
  ledger.abort(2);
  admit(3, 4, {3});
  EXPECT_TRUE(store_it(keys[0], 1));
  expect_throw<TimeoutError>(
      [&] {
        load_blocks(*store, {&keys[0], 1}, ledger, reader, 3, 3, 0, kNow);
      },
      {"step 2"});
  EXPECT_EQ(read(ledger.finish(3, 5)), "missing missing missing missing");
}

TEST_F(OffloadTest, RowsOfAnEarlierOwnerAreStaleAfterATimeout) {
  EXPECT_TRUE(store_it(keys[0], 1));
  ledger.finish(1, 9);
  admit(2, 4, {1});
  ledger.schedule(2, 2, {0, 4});
  ledger.abort(2);
  admit(3, 4, {1});
  expect_throw<TimeoutError>(
      [&] {
        load_blocks(*store, {&keys[0], 1}, ledger, reader, 3, 3, 0, kNow);
      },
      {"step 2"});
  const RowPlan plan = ledger.finish(3, 5);
  EXPECT_EQ(read(plan), "stale stale stale stale");
  land(2, {1}, {0, 4});  // comes at last, and is not request 3's either
  EXPECT_EQ(read(plan), "stale stale stale stale");
}

TEST_F(OffloadTest, RefusesOtherShapesAndPlaces) {
  expect_throw<ArgumentError>([&] { load_blocks(*store, keys, ledger, reader, 2, 1, 2, kNow); },
                              {"position 2"});
  expect_throw<RangeError>([&] { load_blocks(*store, keys, ledger, reader, 2, 1, 4, kNow); },
                           {"[4, 12)"});
  constexpr std::int64_t kFarthest = std::numeric_limits<std::int64_t>::max() / 4 * 4;
  for (const std::int64_t position : {kFarthest, kFarthest - 4}) {
    expect_throw<RangeError>(
        [&] { load_blocks(*store, keys, ledger, reader, 2, 1, position, kNow); },
        {"below 2^63", std::to_string(position)});
  }
  expect_throw<RangeError>([&] { load_blocks(*store, keys, ledger, reader, 2, 1, -4, kNow); },
                           {"-4"});
  BlockStoreOptions other = options(4);
  other.block_size = 2;
  store = make_memory_block_store(other);
  expect_throw<ArgumentError>([&] { store_it(keys[0], 1); }, {"2 rows a block", "4 a block"});
  other = options(4);
  other.shape = ModelShape::uniform(2, 2, 255);
  store = make_memory_block_store(other);
  expect_throw<ArgumentError>([&] { load_blocks(*store, keys, ledger, reader, 2, 1, 0, kNow); },
                              {"255 experts"});
}

}  // namespace
}  // namespace moetap
