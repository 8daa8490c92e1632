// Drafts that form a tree, where blocks of one token change places instead of what is in them
// (H30).
#include <moetap/error.h>
#include <moetap/ledger.h>
#include <moetap/read_rows.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "test/lib/drafts_world.h"

namespace moetap {
namespace {

using test::Blocks;
using test::expect_throw;
using test::kAtOnce;
using test::number_at;
using test::SlotMemory;
using test::Tokens;

// Step 1 computed a prompt of two tokens, in blocks 0 and 1, and sampled one.
struct BegunLedger : Ledger {
  explicit BegunLedger(std::int64_t num_blocks = 16) : Ledger(num_blocks, 1) {
    admit({.request = 1, .num_tokens = 2, .placement = {Blocks{0, 1}, 0}});
    schedule(1, 1, {0, 2});
    accept(1, 1, 3);
  }
};

class LedgerDraftBlocks : public testing::Test {
 protected:
  LedgerDraftBlocks() {
    land(1, {0, 1});
    ledger.schedule(2, 1, {2, 5}, Blocks{5, 6, 7});
  }

  void land(Step step, const Blocks& blocks) {
    std::vector<std::pair<Slot, std::uint32_t>> rows;
    for (const BlockId block : blocks) {
      rows.emplace_back(first_slot(block, 1), 100 * step.value() + block.value());
    }
    memory->publish(step, rows);
  }
  // "2.7" is the row that step 2 wrote to block 7.
  std::string read(const RowPlan& plan) {
    const Routes routes = read_rows(reader, plan, kAtOnce);
    std::string text;
    for (std::int64_t p = plan.range.start; p < plan.range.end; ++p) {
      const std::uint32_t number = number_at(routes, p);
      text += routes.state(p) == RowState::present
                  ? fmt::format("{}.{} ", number / 100, number % 100)
                  : fmt::format("{} ", row_state_name(routes.state(p)));
    }
    return text;
  }

  BegunLedger ledger;
  SlotMemory* memory = new SlotMemory(16);
  Reader reader{std::unique_ptr<SlotReadTransport>(memory)};
};

TEST_F(LedgerDraftBlocks, PositionsHaveTheBlocksOfTheTokensThatStand) {
  land(2, {5, 6, 7});
  ledger.accept_blocks(2, 1, 5, Tokens{0, 2});
  EXPECT_EQ(read(ledger.rows_since(1, 0)), "1.0 1.1 2.5 2.7 ");
  ledger.schedule(3, 1, {4, 5}, Blocks{6});
  land(3, {6});
  ledger.accept_blocks(3, 1, 6, Tokens{0});
  EXPECT_EQ(read(ledger.finish(1, 6)), "1.0 1.1 2.5 2.7 3.6 ");
}

TEST_F(LedgerDraftBlocks, StepsInFlightMoveUp) {
  ledger.schedule(3, 1, {5, 8}, Blocks{8, 9, 10});
  land(2, {5, 6, 7});
  ledger.accept_blocks(2, 1, 5, Tokens{0, 2});
  ledger.admit({.request = 2, .num_tokens = 1, .placement = {Blocks{6}, 0}});  // was given up
  ledger.schedule(4, 2, {0, 1});
  ledger.schedule(4, 1, {7, 8}, Blocks{11});
  land(3, {8, 9, 10});
  ledger.accept_blocks(3, 1, 7, Tokens{0, 2});
  land(4, {6, 11});
  ledger.accept(4, 1, 8);
  EXPECT_EQ(read(ledger.finish(1, 8)), "1.0 1.1 2.5 2.7 3.8 3.10 4.11 ");
  EXPECT_EQ(read(ledger.finish(2, 2)), "4.6 ");
}

TEST_F(LedgerDraftBlocks, NothingIsLeftInABlockThatWasGivenUp) {  // H9
  land(2, {5, 6, 7});
  ledger.accept_blocks(2, 1, 4, Tokens{0, 2});  // token 2 comes after a stop
  const Blocks hit{0, 1, 5, 6, 7};
  ledger.admit({.request = 2, .num_tokens = 6, .placement = {hit, 5}});
  EXPECT_EQ(read(ledger.rows_since(2, 0)), "1.0 1.1 2.5 missing missing ");
  EXPECT_EQ(read(ledger.finish(1, 5)), "1.0 1.1 2.5 missing ");
}

// Which blocks the request would have then is not known.
TEST_F(LedgerDraftBlocks, RefusesAStepOfWhichItIsNotKnownWhereItBegins) {
  ledger.schedule(3, 1, {5, 8}, Blocks{8, 9, 10});
  land(2, {5, 6, 7});
  land(3, {8, 9, 10});
  expect_throw<StateError>(
      [&] {
        ledger.accept_blocks(3, 1, 7, Tokens{0, 2});
      },
      {"step 3 of request 1", "position 5", "accept the steps before it"});
  ledger.accept_blocks(2, 1, 5, Tokens{0, 2});
  ledger.accept_blocks(3, 1, 7, Tokens{0, 2});
  EXPECT_EQ(read(ledger.finish(1, 7)), "1.0 1.1 2.5 2.7 3.8 3.10 ");
}

TEST_F(LedgerDraftBlocks, RowsUnderAGuessMoveUpWithTheirBlocks) {
  ledger.schedule(3, 1, {5, 8}, Blocks{8, 9, 10});
  ledger.schedule(4, 1, {6, 9}, Blocks{11});
  land(2, {5, 6, 7});
  land(3, {8, 9, 10});
  ledger.accept_blocks(2, 1, 5, Tokens{0, 2});
  ledger.schedule(4, 1, {7, 8});
  ledger.accept_blocks(3, 1, 8, Tokens{0, 1, 2});
  EXPECT_EQ(read(ledger.finish(1, 8)), "1.0 1.1 2.5 2.7 3.8 3.9 3.10 ");
}

TEST_F(LedgerDraftBlocks, RefusesALaterStepThatWasGuessedTooLow) {
  for (const std::int64_t drafts : {2, 5, 20}) {
    SCOPED_TRACE(drafts);
    for (std::int64_t low = 1; low <= 2 + drafts; ++low) {
      BegunLedger again(64);
      Blocks blocks;
      for (std::int64_t i = 0; i <= drafts; ++i) blocks.emplace_back(10 + i);
      again.schedule(2, 1, {2, 3 + drafts}, blocks);
      again.schedule(3, 1, {low, low + 3}, Blocks{40, 41, 42});
      expect_throw<StateError>(
          [&] { again.accept_blocks(2, 1, 4, Tokens{0}); },
          {"its step 3 was reported to compute", "places at [3, ", "outside of these"});
      again.schedule(3, 1, {3 + drafts, 6 + drafts});
      again.accept_blocks(2, 1, 4, Tokens{0});
      EXPECT_TRUE(again.rows_since(1, 0).verdicts.empty());
      again.accept_blocks(3, 1, 6, Tokens{0, 2});
      const RowPlan plan = again.finish(1, 6);
      EXPECT_TRUE(plan.verdicts.empty());
      EXPECT_EQ(plan.slots, (std::vector<Slot>{0, 1, 10, 40, 42}));
    }
  }
}

// Which token will stand there is not known, so none can have been loaded.
TEST_F(LedgerDraftBlocks, RefusesToPutRowsOverDrafts) {
  for (const std::int64_t put : {3, 4}) {
    expect_throw<ArgumentError>(
        [&] {
          (void)ledger.fill(3, 1, {put, put + 1});
        },
        {"of request 1", "known to have 3 tokens", "accept()"});
  }
  (void)ledger.fill(3, 1, {2, 3});
  ledger.accept_blocks(2, 1, 5, Tokens{0, 2});
  (void)ledger.fill(4, 1, {3, 4});
  const RowPlan plan = ledger.finish(1, 5);
  EXPECT_TRUE(plan.verdicts.empty());
  EXPECT_EQ(plan.windows[2].first, Step(3));
  EXPECT_EQ(plan.windows[3].first, Step(4));
}

// Blocks that others hit would move up with their rows.
TEST_F(LedgerDraftBlocks, RefusesAHitOfTokensThatAreNotKnown) {
  expect_throw<ArgumentError>(
      [&] {
        ledger.admit({.request = 2, .num_tokens = 1, .placement = {Blocks{0, 1}, 2}});
      },
      {"[0, 2) of request 2", "known to have 1 tokens"});
  ledger.preempt(1);
  expect_throw<ArgumentError>(
      [&] {
        ledger.resume(1, {Blocks{0, 1, 5, 6}, 4});
      },
      {"[0, 4) of request 1", "known to have 3 tokens"});
  ledger.resume(1, {Blocks{0, 1}, 2});
}

// An accept() that contradicts the step: it said that tokens 3 and 4 are known.
TEST_F(LedgerDraftBlocks, TokensThatAreKnownDoNotMove) {
  BegunLedger again;
  again.schedule(9, 1, {2, 3}, Blocks{5});
  again.schedule(10, 1, {3, 6}, Blocks{6, 7, 8});
  again.accept(2, 1, 6);
  expect_throw<ArgumentError>(
      [&] {
        again.accept_blocks(10, 1, 6, Tokens{0, 2});
      },
      {"token 2 at place 1", "drafts begin at token 3"});
  expect_throw<ArgumentError>(
      [&] {
        (void)again.accept(10, 1, 6, Tokens{0, 2}, 20);
      },
      {"token 2 at place 1", "drafts begin at token 3"});
}

// Where a whole block moved, the step's row did too.
TEST_F(LedgerDraftBlocks, ARowThatMovedWithItsBlockIsStillTheSteps) {
  (void)ledger.move(3, std::vector<BlockMove>{{7, 12}});
  ledger.accept_blocks(2, 1, 5, Tokens{0, 2});
  const RowPlan plan = ledger.rows_since(1, 0);
  EXPECT_TRUE(plan.verdicts.empty());
  EXPECT_EQ(plan.slots, (std::vector<Slot>{0, 1, 5, 12}));
  EXPECT_EQ(plan.windows[3].first, Step(3));
}

// Their blocks come to be where a block of the accepted step was that had moved too.
TEST_F(LedgerDraftBlocks, RowsOfALaterStepThatMovedStayWhenTheyMoveUp) {
  ledger.schedule(3, 1, {5, 7}, Blocks{8, 9});
  (void)ledger.move(4, std::vector<BlockMove>{{7, 12}, {8, 13}});
  ledger.accept_blocks(2, 1, 5, Tokens{0, 2});
  ledger.accept_blocks(3, 1, 7, Tokens{0, 1});
  const RowPlan plan = ledger.finish(1, 7);
  EXPECT_TRUE(plan.verdicts.empty());
  EXPECT_EQ(plan.slots, (std::vector<Slot>{0, 1, 5, 12, 13, 9}));
}

// Step 3 was guessed too low, and what it was to compute moved.
TEST_F(LedgerDraftBlocks, ARowOfALaterStepThatMovedIsStillWithdrawn) {
  BegunLedger again;
  again.schedule(2, 1, {2, 4}, Blocks{5, 6});
  again.schedule(3, 1, {2, 3});
  (void)again.copy(4, 1, {5, 9});
  again.accept_blocks(2, 1, 4, Tokens{0});
  again.schedule(3, 1, {3, 4}, Blocks{7});
  const RowPlan plan = again.finish(1, 5);
  ASSERT_EQ(plan.verdicts.size(), 1);
  EXPECT_EQ(plan.verdicts[0].positions, (TokenRange{2, 3}));
  EXPECT_EQ(plan.verdicts[0].state, RowState::missing);
}

TEST_F(LedgerDraftBlocks, SoIsOneOfAKnownToken) {
  ledger.schedule(3, 1, {0, 1});
  const MovePlan moved = ledger.move(4, std::vector<BlockMove>{{0, 9}});
  ledger.schedule(3, 1, {5, 6}, Blocks{0});
  land(3, {0});
  move_rows(reader, moved, kAtOnce);
  EXPECT_EQ(read(ledger.rows_since(1, 0)), "missing 1.1 ");
}

// Then it would not be known which tokens the step had.
TEST_F(LedgerDraftBlocks, RefusesNewStepsAndNewDraftsFromBeforeAPut) {
  ledger.schedule(4, 1, {8, 11}, Blocks{8, 9, 10, 11, 12, 13});
  (void)ledger.fill(5, 1, {0, 1});
  expect_throw<StateError>(
      [&] {
        ledger.schedule(3, 1, {5, 8});
      },
      {"request 1 with step 3", "put under step 5", "report new steps"});
  ledger.schedule(4, 1, {5, 8});
  BegunLedger other;
  other.schedule(2, 1, {2, 3}, Blocks{5});
  (void)other.move(3, std::vector<BlockMove>{{0, 12}});
  expect_throw<StateError>(
      [&] {
        other.schedule(2, 1, {2, 5}, Blocks{6, 7});
      },
      {"step 2", "those with drafts"});
  other.schedule(2, 1, {2, 3});
}

TEST_F(LedgerDraftBlocks, AStepThatComputesNothingIsNotInTheWay) {
  ledger.schedule(3, 1, {4, 4});
  land(2, {5, 6, 7});
  ledger.accept_blocks(2, 1, 4, Tokens{0});
  EXPECT_EQ(read(ledger.rows_since(1, 0)), "1.0 1.1 2.5 ");
}

TEST_F(LedgerDraftBlocks, TakesItWhereNoBlockChangesPlaces) {
  ledger.schedule(3, 1, {3, 6}, Blocks{8});
  land(2, {5, 6, 7});
  ledger.accept_blocks(2, 1, 6, Tokens{0, 1, 2});
  ledger.schedule(3, 1, {5, 6});
  land(3, {8});
  ledger.accept_blocks(3, 1, 7, Tokens{0});
  EXPECT_EQ(read(ledger.finish(1, 7)), "1.0 1.1 2.5 2.6 2.7 3.8 ");
}

TEST_F(LedgerDraftBlocks, AStepBeforeThemKeepsItsRows) {
  ledger.schedule(3, 1, {0, 3});
  land(2, {5, 6, 7});
  land(3, {0, 1, 5});
  ledger.accept_blocks(2, 1, 4, Tokens{0});
  ledger.accept_blocks(3, 1, 4, Tokens{0, 1, 2});
  EXPECT_EQ(read(ledger.finish(1, 4)), "3.0 3.1 3.5 ");
}

// Tokens that are known are not rejected: it began elsewhere.
TEST_F(LedgerDraftBlocks, AStepOfKnownTokensGivesNoneUp) {
  ledger.accept_blocks(2, 1, 6, Tokens{0, 1, 2});
  ledger.schedule(3, 1, {2, 5});
  for (const Tokens& accepted : {Tokens{0, 1}, Tokens{}, Tokens{0, 2, 1}}) {
    expect_throw<StateError>([&] { ledger.accept_blocks(3, 1, 8, accepted); },
                             {"step 3", "begin at position 2", "report it again"});
  }
  // It sampled more tokens than one at position 5 would.
  expect_throw<StateError>([&] { ledger.accept_blocks(3, 1, 7, Tokens{0, 1, 2}); }, {"step 3"});
  land(3, {5, 6, 7});
  ledger.accept_blocks(3, 1, 6, Tokens{0, 1, 2});
  EXPECT_EQ(read(ledger.rows_since(1, 0)), "1.0 1.1 3.5 3.6 3.7 ");
}

// What it gave up is known no more.
TEST_F(LedgerDraftBlocks, RefusesAStepThatIsOver) {
  ledger.accept_blocks(2, 1, 5, Tokens{0, 2});
  expect_throw<StateError>([&] { ledger.accept_blocks(2, 1, 5, Tokens{0}); },
                           {"step 2 of request 1", "it was accepted", "once, in order"});
  ledger.schedule(3, 1, {4, 7}, Blocks{8, 9, 10});
  (void)ledger.accept(3, 1, 6, Tokens{0}, 100);
  expect_throw<StateError>([&] { ledger.accept_blocks(3, 1, 6, Tokens{0}); }, {"step 3"});
}

// Nothing is given up for a run that has no blocks any more.
TEST_F(LedgerDraftBlocks, AStepOfAnEarlierRunTellsOfTokensOnly) {
  ledger.preempt(1);
  ledger.resume(1, {Blocks{0, 1, 8, 9}, 0});
  ledger.schedule(3, 1, {0, 3});
  ledger.accept_blocks(3, 1, 4, Tokens{0, 1, 2});
  EXPECT_NO_THROW(ledger.accept_blocks(2, 1, 5, Tokens{0}));
}

TEST_F(LedgerDraftBlocks, RefusesAStepThatIsNotOneOfTheNewest) {
  for (std::int64_t i = 3; i <= 66; ++i) ledger.schedule(Step(i), 1, {4, 5});
  expect_throw<StateError>(
      [&] {
        ledger.accept_blocks(2, 1, 5, Tokens{0, 1});
      },
      {"step 2 of request 1", "newest 64"});
}

// A chain's rejected tokens keep their blocks: the next step is computed over them.
TEST_F(LedgerDraftBlocks, RefusesALedgerForChains) {
  Ledger chain(16, 1, Drafts::chain);
  chain.admit({.request = 1, .num_tokens = 2, .placement = {Blocks{0, 1}, 0}});
  chain.schedule(1, 1, {0, 2});
  expect_throw<StateError>(
      [&] {
        chain.accept_blocks(1, 1, 3, Tokens{0, 1});
      },
      {"Drafts::chain", "call accept()", "Drafts::tree"});
}

TEST_F(LedgerDraftBlocks, RefusesWhatCannotBe) {
  land(2, {5, 6, 7});
  expect_throw<RangeError>([&] { ledger.accept_blocks(2, 1, 5, Tokens{0, 3}); }, {"token 3"});
  expect_throw<ArgumentError>([&] { ledger.accept_blocks(2, 1, 5, Tokens{0}); }, {"names 1"});
  expect_throw<ArgumentError>([&] { ledger.accept_blocks(2, 1, 4, Tokens{1}); },
                              {"token 1 at place 0", "begin at token 1"});
  expect_throw<StateError>([&] { ledger.accept_blocks(1, 1, 5, Tokens{1}); }, {"step 1"});
  expect_throw<ArgumentError>(
      [&] {
        ledger.accept_blocks(2, 1, 1, Tokens{0, 2});
      },
      {"accept_blocks()", "1 tokens of request 1", "or more"});
  Ledger larger(8, 2);
  larger.admit({.request = 1, .num_tokens = 2, .placement = {Blocks{0, 1}, 0}});
  expect_throw<ArgumentError>([&] { larger.accept_blocks(2, 1, 3, Tokens{0}); },
                              {"blocks of 2", "accept()"});
  ledger.accept_blocks(2, 1, 5, Tokens{0, 2});
  EXPECT_EQ(read(ledger.finish(1, 5)), "1.0 1.1 2.5 2.7 ");
}

// The blocks that it would give up are those of other tokens.
TEST_F(LedgerDraftBlocks, AGuessThatGoesBackHasNoTokensToMove) {
  ledger.schedule(2, 1, {0, 2});
  expect_throw<StateError>(
      [&] {
        ledger.accept_blocks(2, 1, 5, Tokens{0, 2});
      },
      {"step 2", "begin at position 0", "report it again"});
  ledger.schedule(2, 1, {2, 5});
  land(2, {5, 6, 7});
  ledger.accept_blocks(2, 1, 5, Tokens{0, 2});
  EXPECT_EQ(read(ledger.finish(1, 5)), "1.0 1.1 2.5 2.7 ");
}

}  // namespace
}  // namespace moetap
