#include <moetap/error.h>
#include <moetap/pending_rows.h>

#include "test/lib/ledger_world.h"

namespace moetap {
namespace {

using test::Blocks;
using test::expect_throw;
using test::number_at;

class PendingRowsTest : public test::LedgerWorld {
 protected:
  // A request over `blocks` that step `step` computed, and that waits to be collected.
  void leave(RequestId request, Step step, const Blocks& blocks) {
    const auto tokens = static_cast<std::int64_t>(blocks.size()) * kBlock;
    admit(request, tokens, blocks);
    compute(step, request, blocks, {0, tokens});
    pending.add(ledger.finish(request, tokens + 1));
  }

  void expect_all(RequestId request, Step step) {
    const Routes routes = pending.collect(request, kNow);
    EXPECT_TRUE(routes.all_present());
    for (std::int64_t p = 0; p < routes.range().end; ++p) {
      EXPECT_EQ(number_at(routes, p), number(step, p));
    }
  }

  PendingRows pending{ledger, reader};
};

TEST_F(PendingRowsTest, HoldsBlocksUntilCollected) {  // H11
  leave(1, 1, {1, 2});
  EXPECT_TRUE(ledger.held(1) && ledger.held(2));
  EXPECT_TRUE(pending.contains(1));
  expect_throw<StateError>([&] { admit(2, 4, {1}); }, {"block 1", "held"});
  expect_all(1, 1);
  EXPECT_FALSE(ledger.held(1) || ledger.held(2));
  EXPECT_EQ(pending.size(), 0u);
}

TEST_F(PendingRowsTest, TakesRowsEarlyFromBlocksThatAreReused) {  // H11
  leave(1, 1, {1, 2});
  leave(2, 2, {3});
  pending.take_early(Blocks{2, 7}, kNow);
  EXPECT_FALSE(ledger.held(1) || ledger.held(2));
  EXPECT_TRUE(ledger.held(3));
  admit(3, 8, {2, 1});
  compute(3, 3, {2, 1}, {0, 8});
  expect_all(1, 1);
  expect_all(2, 2);
}

TEST_F(PendingRowsTest, TakesRowsOfAllWhoShareABlock) {  // H9, H11
  admit(1, 4, {1});
  admit(2, 5, {1, 2}, 4);
  ledger.schedule(1, 1, {0, 4});
  land(1, {1}, {0, 4});
  pending.add(ledger.finish(1, 5));
  pending.add(ledger.finish(2, 5));
  pending.take_early(Blocks{1}, kNow);
  EXPECT_FALSE(ledger.held(1));
  admit(3, 4, {1});
  compute(2, 3, {1}, {0, 4});
  expect_all(1, 1);
  expect_all(2, 1);
}

TEST_F(PendingRowsTest, ReadsNothingWhileNobodyWaits) {
  leave(1, 1, {1});
  const int reads = memory->reads;
  pending.take_early(Blocks{2, 3}, kNow);
  EXPECT_EQ(memory->reads, reads);
  EXPECT_TRUE(ledger.held(1));
}

TEST_F(PendingRowsTest, StillWaitsAfterATimeout) {
  admit(1, 4, {1});
  ledger.schedule(1, 1, {0, 4});
  pending.add(ledger.finish(1, 5));
  expect_throw<TimeoutError>([&] { pending.take_early(Blocks{1}, kNow); }, {"step 1"});
  expect_throw<TimeoutError>([&] { pending.collect(1, kNow); }, {"step 1"});
  EXPECT_TRUE(ledger.held(1));
  land(1, {1}, {0, 4});
  expect_all(1, 1);
}

TEST_F(PendingRowsTest, EachRequestIsCollectedOnce) {
  leave(1, 1, {1});
  RowPlan again;
  again.request = 1;
  expect_throw<StateError>([&] { pending.add(again); }, {"request 1", "already"});
  expect_all(1, 1);
  expect_throw<StateError>([&] { pending.collect(1, kNow); }, {"request 1"});
  expect_throw<StateError>([&] { pending.drop(1); }, {"request 1"});
}

TEST_F(PendingRowsTest, DroppedRowsLetGoOfTheirBlocks) {
  leave(1, 1, {1});
  pending.drop(1);
  EXPECT_FALSE(ledger.held(1));
  EXPECT_FALSE(pending.contains(1));
}

TEST_F(PendingRowsTest, APlanOfUnknownBlocksDoesNotWait) {
  RowPlan plan;
  plan.request = 7;
  plan.blocks = {99};
  expect_throw<RangeError>([&] { pending.add(plan); }, {"block 99"});
  EXPECT_FALSE(pending.contains(7));
}

}  // namespace
}  // namespace moetap
