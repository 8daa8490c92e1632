// Trees of drafts of which the ledger was told less than it needs (H30): where a step really began,
// or what else was done to its slots. What it cannot know is missing.
#include <moetap/error.h>
#include <moetap/ledger.h>
#include <moetap/read_rows.h>

#include <gtest/gtest.h>

#include <vector>

#include "test/lib/drafts_world.h"

namespace moetap {
namespace {

using test::Blocks;
using test::expect_throw;
using test::kAtOnce;
using test::Tokens;

// Step 3 was planned as if all of step 2 stood, but begins a position earlier: D, and the
// alternatives E and F of position 5. D and F stand; E's row lies where F's belongs.
class LedgerMisreported : public test::DraftsWorld {
 protected:
  LedgerMisreported() {
    compute(1, {0, 2});
    ledger.accept(1, 1, 3);
    ledger.schedule(2, 1, {2, 5});
  }
  void land_both() {
    land(2, {2, 5});
    land(3, {4, 7});
  }
};
INSTANTIATE_TEST_SUITE_P(BlockSize, LedgerMisreported, testing::Values(1, 2, 16),
                         testing::PrintToStringParamName());

TEST_P(LedgerMisreported, HasNoRowsIfItIsNotReportedAgain) {
  ledger.schedule(3, 1, {5, 8});
  land_both();
  EXPECT_TRUE(ledger.accept(2, 1, 5, Tokens{0, 1}, 4).from.empty());
  EXPECT_TRUE(ledger.accept(3, 1, 7, Tokens{0, 2}, 4).from.empty());
  compute(4, {6, 9});
  move_rows(reader, ledger.accept(4, 1, 9, Tokens{0, 2}, 5), kAtOnce);
  EXPECT_EQ(read(ledger.finish(1, 9)), "1.0 1.1 2.0 2.1 missing missing 4.0 4.2");
}

TEST_P(LedgerMisreported, HasNoneIfItIsNotToldWhichStand) {
  ledger.schedule(3, 1, {5, 7});
  land_both();
  (void)ledger.accept(2, 1, 5, Tokens{0, 1}, 4);
  ledger.accept(3, 1, 7);
  EXPECT_EQ(read(ledger.finish(1, 7)), "1.0 1.1 2.0 2.1 missing missing");
}

TEST_P(LedgerMisreported, HasNoneBeforeItIsAccepted) {
  ledger.schedule(3, 1, {5, 8});
  land_both();
  EXPECT_EQ(read(ledger.finish(1, 7)), "1.0 1.1 2.0 missing missing missing");
}

TEST_P(LedgerMisreported, HasNoneIfOnlyTheStepBeforeItIsAccepted) {
  ledger.schedule(3, 1, {5, 8});
  land_both();
  (void)ledger.accept(2, 1, 5, Tokens{0, 1}, 4);
  EXPECT_EQ(read(ledger.finish(1, 7)), "1.0 1.1 2.0 2.1 missing missing");
}

// accept() of step 2 would have said that it begins elsewhere.
TEST_P(LedgerMisreported, HasNoneIfTheStepBeforeItIsNotAccepted) {
  ledger.schedule(3, 1, {5, 8});
  land_both();
  (void)ledger.accept(3, 1, 7, Tokens{0, 2}, 4);
  EXPECT_EQ(read(ledger.finish(1, 7)), "1.0 1.1 2.0 missing missing missing");
}

TEST_P(LedgerMisreported, HasNoneIfItIsReportedElsewhereAgain) {
  ledger.schedule(3, 1, {8, 11});
  land_both();
  (void)ledger.accept(2, 1, 5, Tokens{0, 1}, 4);
  ledger.schedule(3, 1, {5, 8});
  (void)ledger.accept(3, 1, 7, Tokens{0, 2}, 4);
  EXPECT_EQ(read(ledger.finish(1, 7)), "1.0 1.1 2.0 2.1 missing missing");
}

TEST_P(LedgerMisreported, HasNoneIfItIsFirstReportedAfterwards) {
  land(2, {2, 5});
  (void)ledger.accept(2, 1, 5, Tokens{0, 1}, 4);
  ledger.schedule(3, 1, {5, 8});
  land(3, {4, 7});
  (void)ledger.accept(3, 1, 7, Tokens{0, 2}, 4);
  EXPECT_EQ(read(ledger.finish(1, 7)), "1.0 1.1 2.0 2.1 missing missing");
}

// Two tokens of it stand, as many as the ledger would take for one.
TEST_P(LedgerMisreported, HasNoneIfItBeginsLaterThanReported) {
  land(2, {2, 5});
  (void)ledger.accept(2, 1, 5, Tokens{0, 1}, 4);
  ledger.schedule(3, 1, {3, 6});
  land(3, {4, 7});
  EXPECT_TRUE(ledger.accept(3, 1, 8, Tokens{0, 2, 1}, 4).from.empty());
  EXPECT_EQ(read(ledger.finish(1, 8)), "1.0 1.1 2.0 2.1 missing missing missing");
}

TEST_P(LedgerMisreported, MayBeReportedAgainBeforeOrAfter) {
  for (const bool before : {true, false}) {
    SCOPED_TRACE(before);
    const RequestId request(before ? 1 : 2);
    const Step step(before ? 2 : 12);
    if (!before) {
      admit(2, 2);
      compute(10, {0, 2}, 2);
      ledger.schedule(step, 2, {2, 5});
    }
    ledger.schedule(step + 1, request, {5, 8});
    land(step, {2, 5}, request);
    if (before) ledger.schedule(step + 1, request, {4, 7});
    (void)ledger.accept(step, request, 5, Tokens{0, 1}, step + 2);
    if (!before) ledger.schedule(step + 1, request, {4, 7});
    land(step + 1, {4, 7}, request);
    EXPECT_EQ(
        move_rows(reader, ledger.accept(step + 1, request, 7, Tokens{0, 2}, step + 2), kAtOnce),
        1u);
    EXPECT_EQ(read(ledger.finish(request, 7)),
              before ? "1.0 1.1 2.0 2.1 3.0 3.2" : "10.0 10.1 12.0 12.1 13.0 13.2");
  }
}

// It was not said that its first token lies there.
TEST_P(LedgerMisreported, IsNoHitBeforeItIsKnownWhereItBegins) {
  ledger.schedule(3, 1, {5, 16});
  Blocks hit = blocks_of(1);
  hit.resize(static_cast<std::size_t>(16 / GetParam()));
  land(2, {2, 5});
  land(3, {5, 16});
  EXPECT_EQ(ledger.cached_rows({hit, 16}), 3);
  (void)ledger.accept(2, 1, 6, Tokens{0, 1, 2}, 4);
  EXPECT_EQ(ledger.cached_rows({hit, 16}), 6);
}

// They trade places after step 3 was given its slots, so that it writes a row of each where the
// other's belongs.
TEST_P(LedgerMisreported, IsNotReportedAgainWhereItsBlocksMoved) {
  admit(2, 4);
  ledger.schedule(2, 2, {0, 4});
  ledger.schedule(3, 1, {5, 8});
  ledger.schedule(3, 2, {4, 5});
  std::vector<BlockMove> moves;
  for (std::size_t i = 0; static_cast<int>(i) * GetParam() < 8; ++i) {
    moves.push_back({blocks_of(1)[i], blocks_of(2)[i]});
    moves.push_back({blocks_of(2)[i], blocks_of(1)[i]});
  }
  const MovePlan moved = ledger.move(4, moves);
  land(2, {2, 5});
  (void)ledger.accept(2, 1, 5, Tokens{0, 1}, 5);
  expect_throw<StateError>([&] { ledger.schedule(3, 1, {4, 7}); }, {"step 3", "was moved there"});
  land(3, {4, 7});
  memory->publish(3, {{slot_of(2, 4), 350}});
  (void)ledger.accept(3, 1, 6, Tokens{0}, 5);
  EXPECT_EQ(read(ledger.rows_since(1, 4)), "missing");
  EXPECT_EQ(move_rows(reader, moved, kAtOnce), 7u);
  EXPECT_EQ(read(ledger.finish(1, 6)), "1.0 1.1 2.0 2.1 missing");
}

// Its blocks moved while it was in flight, and another row came to be where its token 2 was.
class LedgerMovedDrafts : public test::DraftsWorld {
 protected:
  LedgerMovedDrafts() {
    compute(1, {0, 2});
    ledger.accept(1, 1, 3);
    compute(2, {2, 5});
    move(3, 1, 2);
  }
  // To where the blocks of the other half are.
  void move(Step step, RequestId from, RequestId to) {
    std::vector<BlockMove> moves;
    for (std::size_t i = 0; static_cast<int>(i) * GetParam() < 5; ++i) {
      moves.push_back({blocks_of(from)[i], blocks_of(to)[i]});
    }
    move_rows(reader, ledger.move(step, moves), kAtOnce);
  }
};
INSTANTIATE_TEST_SUITE_P(BlockSize, LedgerMovedDrafts, testing::Values(1, 2, 16),
                         testing::PrintToStringParamName());

TEST_P(LedgerMovedDrafts, HaveNotTheRowThatWasComputedThereAndMoved) {
  ledger.schedule(4, 1, {4, 5});
  memory->publish(4, {{slot_of(2, 4), 400}});
  move(5, 2, 1);
  EXPECT_TRUE(ledger.accept(2, 1, 5, Tokens{0, 2}, 9).from.empty());
  EXPECT_EQ(read(ledger.finish(1, 5)), "1.0 1.1 2.0 missing");
}

TEST_P(LedgerMovedDrafts, KeepTheirOwnWhenTheyMoveAgain) {
  move(4, 2, 1);
  EXPECT_EQ(move_rows(reader, ledger.accept(2, 1, 5, Tokens{0, 2}, 9), kAtOnce), 1u);
  EXPECT_EQ(read(ledger.finish(1, 5)), "1.0 1.1 2.0 2.2");
}

}  // namespace
}  // namespace moetap
