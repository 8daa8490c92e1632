// Steps in flight whose begin was guessed too low, so that they lie over each other, and which are
// reported again in any order (H30). What is told is present; what is not is missing.
#include <moetap/error.h>
#include <moetap/ledger.h>
#include <moetap/read_rows.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "test/lib/drafts_world.h"

namespace moetap {
namespace {

using test::Blocks;
using test::expect_throw;
using test::kAtOnce;
using test::kDraftSlots;
using test::Tokens;

// Steps 2 to 5 have two drafts each, and were reported as if no draft were ever accepted.
class LedgerCorrections : public test::DraftsWorld {
 protected:
  LedgerCorrections() {
    compute(1, {0, 2});
    ledger.accept(1, 1, 3);
    guess(ledger);
  }
  static void guess(Ledger& ledger) {
    for (std::int64_t i = 2; i <= 5; ++i) ledger.schedule(Step(i), 1, {i, i + 3});
  }
  void accept(Step step, std::int64_t num_tokens, const Tokens& accepted) {
    move_rows(reader, ledger.accept(step, 1, num_tokens, accepted, 9), kAtOnce);
  }
  // Those of the first positions.
  MovePlan move_blocks(Step step) {
    std::vector<BlockMove> moves;
    for (std::int64_t i = 0; i * GetParam() < 8; ++i) {
      const auto index = static_cast<std::size_t>(i);
      moves.push_back({blocks_of(1)[index], blocks_of(2)[index]});
    }
    return ledger.move(step, moves);
  }
  Blocks full_blocks(std::int64_t positions) const {
    Blocks blocks = blocks_of(1);
    blocks.resize(static_cast<std::size_t>(positions / GetParam()));
    return blocks;
  }
};
INSTANTIATE_TEST_SUITE_P(BlockSize, LedgerCorrections, testing::Values(1, 2, 3, 16),
                         testing::PrintToStringParamName());

// Step 3 begins where it was guessed to, and step 4 two positions later.
TEST_P(LedgerCorrections, TheMiddleStepBeginsLater) {
  land(2, {2, 5});
  accept(2, 4, {0});
  land(3, {3, 6});
  accept(3, 7, {0, 1, 2});
  ledger.schedule(4, 1, {6, 9});
  ledger.schedule(5, 1, {7, 10});
  land(4, {6, 9});
  accept(4, 9, {0, 1});
  ledger.schedule(5, 1, {8, 11});
  land(5, {8, 11});
  accept(5, 10, {0});
  EXPECT_EQ(read(ledger.finish(1, 10)), "1.0 1.1 2.0 3.0 3.1 3.2 4.0 4.1 5.0");
}

TEST_P(LedgerCorrections, AnyOrderOfReportsWillDo) {
  std::array<std::int64_t, 3> order{3, 4, 5};
  do {
    SCOPED_TRACE(testing::PrintToString(order));
    Ledger again(kDraftSlots / GetParam(), GetParam());
    again.admit({.request = 1, .num_tokens = 2, .placement = {blocks_of(1), 0}});
    again.schedule(1, 1, {0, 2});
    again.accept(1, 1, 3);
    guess(again);
    (void)again.accept(2, 1, 5, Tokens{0, 1}, 9);
    for (const std::int64_t step : order) again.schedule(Step(step), 1, {step + 1, step + 4});
    (void)again.accept(3, 1, 6, Tokens{0}, 9);
    (void)again.accept(4, 1, 7, Tokens{0}, 9);
    (void)again.accept(5, 1, 9, Tokens{0, 1}, 9);
    const RowPlan plan = again.finish(1, 9);
    EXPECT_TRUE(plan.verdicts.empty());
    EXPECT_EQ(plan.windows, (std::vector<StepWindow>{
                                {1, 1}, {1, 1}, {2, 2}, {2, 2}, {3, 3}, {4, 4}, {5, 5}, {5, 5}}));
  } while (std::ranges::next_permutation(order).found);
}

// Before accept() of the step before it, as the worker says it first.
TEST_P(LedgerCorrections, EachMayBeReportedAgainBeforeTheStepBeforeItIsAccepted) {
  land(2, {2, 5});
  ledger.schedule(3, 1, {4, 7});
  accept(2, 5, {0, 1});
  land(3, {4, 7});
  ledger.schedule(4, 1, {6, 9});
  accept(3, 7, {0, 2});
  land(4, {6, 9});
  accept(4, 8, {0});
  EXPECT_EQ(read(ledger.finish(1, 8)), "1.0 1.1 2.0 2.1 3.0 3.2 4.0");
}

TEST_P(LedgerCorrections, AStepThatIsNotReportedAgainHasNoRowsAndCoversNone) {
  land(2, {2, 5});
  accept(2, 5, {0, 1});
  EXPECT_EQ(read(ledger.rows_since(1, 0)), "1.0 1.1 2.0 2.1");
  land(3, {4, 7});
  accept(3, 7, {0, 2});
  land(4, {6, 9});
  ledger.schedule(4, 1, {6, 9});
  accept(4, 9, {0, 1});
  land(5, {8, 11});
  accept(5, 11, {0, 1});
  EXPECT_EQ(read(ledger.rows_since(1, 0)),
            "1.0 1.1 2.0 2.1 missing missing 4.0 4.1 missing missing");
  compute(6, {10, 13});
  accept(6, 12, {0});
  EXPECT_EQ(read(ledger.finish(1, 12)),
            "1.0 1.1 2.0 2.1 missing missing 4.0 4.1 missing missing 6.0");
}

// The row of token 2 was where step 4 was reported to begin, and step 4 really begins elsewhere.
TEST_P(LedgerCorrections, ARowUnderAGuessMovesToo) {
  land(2, {2, 5});
  const MovePlan moved = ledger.accept(2, 1, 5, Tokens{0, 2}, 9);
  EXPECT_EQ(moved.from, std::vector{slot_of(1, 4)});
  EXPECT_EQ(move_rows(reader, moved, kAtOnce), 1u);
  EXPECT_EQ(read(ledger.finish(1, 5)), "1.0 1.1 2.0 2.2");
}

TEST_P(LedgerCorrections, AStaleRowUnderAGuessIsStaleAlsoIfItsBlockMoved) {  // H29
  land(2, {2, 5});
  for (std::int64_t i = 3; i <= 5; ++i) ledger.schedule(Step(i), 1, {20, 23});
  ledger.flush();
  (void)move_blocks(6);
  ledger.schedule(7, 1, {3, 6});
  (void)ledger.accept(2, 1, 5, Tokens{0, 1}, 9);
  EXPECT_EQ(read(ledger.finish(1, 5)), "stale stale stale stale");
}

// A guess may lie before tokens that are known by now. It is no prefill: its rows are missing, and
// no call fails.
TEST_P(LedgerCorrections, AStartFromBeforeTheKnownTokensIsNotThatOfAPrefill) {
  accept(2, 6, {0, 1, 2});
  accept(3, 8, {0, 1});
  ledger.schedule(6, 1, {5, 9});
  EXPECT_NO_THROW(accept(4, 9, {0}));
  EXPECT_NO_THROW(accept(5, 10, {0}));
  land(6, {9, 13});
  EXPECT_NO_THROW(accept(6, 12, {0, 3}));
  EXPECT_EQ(read(ledger.rows_since(1, 5)), "missing missing missing missing missing missing");
}

TEST_P(LedgerCorrections, NorIsItOneOfAStepWithOneToken) {
  land(2, {2, 5});
  accept(5, 6, {0});  // nothing was said of steps 2 to 4
  ledger.schedule(6, 1, {3, 4});
  accept(6, 7, {0});
  ledger.schedule(7, 1, {5, 9});
  land(7, {6, 10});
  EXPECT_NO_THROW(accept(7, 9, {0, 2, 1}));
  EXPECT_EQ(read(ledger.finish(1, 9)).find("7."), std::string::npos);
}

// Else the rows of the next run would be taken for those that were sampled from.
TEST_P(LedgerCorrections, ARunIsKeptUpToItsLastTokenWhateverWasReported) {  // H39
  land(2, {2, 5});
  accept(2, 5, {0, 1});
  for (std::int64_t i = 3; i <= 5; ++i) accept(Step(i), 3 * i - 1, {0, 1, 2});
  const RowPlan kept = ledger.preempt_keeping(1);
  EXPECT_EQ(kept.range.end, 13);
  EXPECT_EQ(read(kept).substr(0, 23), "1.0 1.1 2.0 2.1 missing");
}

TEST_P(LedgerCorrections, RowsUnderAGuessAreLostWhenTheirBlocksMove) {  // H8
  land(2, {2, 5});
  const MovePlan moved = move_blocks(6);
  land(5, {5, 8});
  move_rows(reader, moved, kAtOnce);
  (void)ledger.accept(2, 1, 5, Tokens{0, 1}, 9);
  EXPECT_EQ(read(ledger.rows_since(1, 0)), "1.0 1.1 2.0 missing");
}

// Its worker hears nothing of the end of the request, and knows alone where the step begins.
TEST_P(LedgerCorrections, RowsAreNotPutWhereAStepInFlightMayStillWrite) {  // H11
  ledger.schedule(5, 1, {30, 33});
  (void)ledger.abort(1);
  ledger.admit({.request = 3, .num_tokens = 48, .placement = {blocks_of(1), 0}});
  for (std::int64_t p = 2; p < 33; ++p) {
    EXPECT_EQ(ledger.fill(Step(p + 6), 3, {p, p + 1}).last_step, Step(5)) << p;
  }
}

TEST_P(LedgerCorrections, NorAreRowsMovedThere) {  // H11
  admit(2, 2);
  compute(1, {0, 2}, 2);
  (void)ledger.abort(1);
  // If all drafts are accepted, step 5 ends after position 13.
  const BlockMove move{blocks_of(2).front(),
                       blocks_of(1)[static_cast<std::size_t>(13 / GetParam())]};
  EXPECT_EQ(ledger.move(6, {&move, 1}).last_step, Step(5));
}

// Only what was filled in there is the position's row.
TEST_P(LedgerCorrections, NothingIsLeftUnderRowsThatWereFilledIn) {
  ledger.schedule(5, 1, {0, 2});  // too low a guess
  (void)move_blocks(6);
  fill_rows(reader, ledger.fill(7, 1, {0, 1}), test::number_row(700), kAtOnce);
  ledger.schedule(5, 1, {20, 23});
  EXPECT_EQ(read(ledger.rows_since(1, 0)), "7.0 missing");
}

// Only the newest 64 steps are in flight. The worker began step 3 at position 3.
TEST_P(LedgerCorrections, WhereAStepBeginsIsAGuessAlsoIfTheStepBeforeItIsForgotten) {
  for (std::int64_t i = 4; i <= 66; ++i) ledger.schedule(Step(i), 1, {20, 23});
  ledger.schedule(3, 1, {4, 7});
  land(2, {2, 5});
  land(3, {3, 6});
  EXPECT_EQ(read(ledger.finish(1, 7)), "1.0 1.1 2.0 missing missing missing");
}

TEST_P(LedgerCorrections, AStepBeforeThoseInFlightIsNoCorrection) {
  expect_throw<StateError>(
      [&] {
        ledger.schedule(1, 1, {4, 6});
      },
      {"step 1", "report steps in order"});
}

// At first it had no drafts, and nothing was in flight.
TEST_P(LedgerCorrections, NothingIsLeftOfAStepThatHadNoDraftsAtFirst) {
  admit(2, 2);
  compute(6, {0, 2}, 2);
  ledger.schedule(7, 2, {4, 5});
  ledger.schedule(7, 2, {1, 4});
  ledger.accept(6, 2, 3);
  (void)ledger.accept(7, 2, 6, Tokens{0, 2, 1}, 9);
  EXPECT_EQ(ledger.finish(2, 6).windows[4].first, Step(0));
}

// With plain steps before it, and one in flight after it.
TEST_P(LedgerCorrections, APlainStepThatIsReportedWhereItWasChangesNothing) {
  admit(2, 2);
  ledger.schedule(6, 2, {0, 2});
  for (const Step step : {Step(7), Step(8)}) {
    const auto p = static_cast<std::int64_t>(step.value()) - 5;
    ledger.schedule(step, 2, {p, p + 1});
  }
  ledger.schedule(9, 2, {4, 6});
  ledger.schedule(8, 2, {3, 4});
  for (const Step step : {Step(6), Step(7), Step(8)}) {
    ledger.accept(step, 2, static_cast<std::int64_t>(step.value()) - 3);
  }
  EXPECT_TRUE(ledger.rows_since(2, 0).verdicts.empty());
}

// Too low a guess, before it is known how many tokens stand.
TEST_P(LedgerCorrections, APlainStepThatIsReportedElsewhereIsAGuess) {
  admit(2, 2);
  ledger.schedule(6, 2, {0, 2});
  ledger.schedule(7, 2, {2, 3});
  ledger.schedule(8, 2, {5, 7});
  ledger.schedule(7, 2, {1, 4});
  (void)ledger.accept(7, 2, 6, Tokens{0, 2, 1}, 9);
  const RowPlan plan = ledger.finish(2, 6);
  ASSERT_EQ(plan.verdicts.size(), 1);
  EXPECT_EQ(plan.verdicts[0].positions, (TokenRange{2, 5}));
  EXPECT_EQ(plan.verdicts[0].state, RowState::missing);
}

// Reported again where it was, with a step in flight after it.
TEST_P(LedgerCorrections, AStepWithoutDraftsKnowsTheOneBeforeItWhenReportedAgain) {
  for (const bool accepted : {true, false}) {
    SCOPED_TRACE(accepted);
    const RequestId id(accepted ? 2 : 3);
    const Step step(accepted ? 6 : 16);
    if (!accepted) (void)ledger.abort(2);
    ledger.admit({.request = id, .num_tokens = 2, .placement = {blocks_of(2), 0}});
    ledger.schedule(step, id, {0, 2});
    if (accepted) ledger.accept(step, id, 3);
    ledger.schedule(step + 1, id, {2, 3});
    ledger.schedule(step + 2, id, {3, 6});
    ledger.schedule(step + 1, id, {2, 3});
    if (!accepted) ledger.accept(step, id, 3);
    (void)ledger.accept(step + 1, id, 4, Tokens{0}, step + 3);
    EXPECT_TRUE(ledger.rows_since(id, 0).verdicts.empty());
  }
}

// --- chains
// ----------------------------------------------------------------------------------------

class LedgerChainCorrections : public LedgerCorrections {
 protected:
  LedgerChainCorrections() {
    chain.admit({.request = 1, .num_tokens = 2, .placement = {blocks_of(1), 0}});
    chain.schedule(1, 1, {0, 2});
    chain.accept(1, 1, 3);
    guess(chain);
  }
  Ledger chain{kDraftSlots / GetParam(), GetParam(), Drafts::chain};
};
INSTANTIATE_TEST_SUITE_P(BlockSize, LedgerChainCorrections, testing::Values(1, 2, 3, 16),
                         testing::PrintToStringParamName());

TEST_P(LedgerChainCorrections, TheMiddleStepBeginsLater) {
  land(2, {2, 5});
  chain.accept(2, 1, 4);
  land(3, {3, 6});
  chain.accept(3, 1, 7);
  chain.schedule(4, 1, {6, 9});
  chain.schedule(5, 1, {8, 11});
  land(4, {6, 9});
  chain.accept(4, 1, 9);
  land(5, {8, 11});
  chain.accept(5, 1, 10);
  EXPECT_EQ(read(chain.finish(1, 10)), "1.0 1.1 2.0 3.0 3.1 3.2 4.0 4.1 5.0");
}

TEST_P(LedgerChainCorrections, ADraftUnderAGuessThatIsTakenBackHasItsRow) {
  land(2, {2, 5});
  chain.accept(2, 1, 6);
  for (std::int64_t i = 3; i <= 5; ++i) chain.schedule(Step(i), 1, {i + 2, i + 5});
  land(3, {5, 8});
  chain.accept(3, 1, 7);
  EXPECT_EQ(read(chain.finish(1, 7)), "1.0 1.1 2.0 2.1 2.2 3.0");
}

TEST_P(LedgerChainCorrections, ADraftUnderAGuessThatWasRejectedDoesNotComeBack) {  // H17
  land(2, {2, 5});
  chain.accept(2, 1, 4);
  for (std::int64_t i = 3; i <= 5; ++i) chain.schedule(Step(i), 1, {20, 23});
  EXPECT_EQ(read(chain.finish(1, 6)), "1.0 1.1 2.0 missing missing");
}

TEST_P(LedgerChainCorrections, NothingIsUncoveredInARunThatWasPreempted) {  // H10
  land(2, {2, 5});
  chain.preempt(1);
  chain.resume(1, {blocks_of(1), 0});
  chain.schedule(6, 1, {0, 6});
  chain.schedule(6, 1, {0, 2});
  land(6, {20, 21});  // what it computed is of no matter here
  EXPECT_EQ(read(chain.finish(1, 5)), "stale stale missing missing");
}

TEST_P(LedgerChainCorrections, NothingIsLeftWhereAStepWasReportedBefore) {
  chain.accept(4, 1, 5);
  chain.schedule(5, 1, {4, 47});
  EXPECT_EQ(chain.cached_rows({full_blocks(48), full_blocks(48).empty() ? 0 : 47}), 47);
  chain.schedule(5, 1, {4, 7});
  EXPECT_EQ(chain.cached_rows({full_blocks(48), 47}), 7);
}

// Else they would have no end where accept() is never called.
TEST_P(LedgerChainCorrections, TheLast64StepsMayBeReportedAgain) {
  for (std::int64_t i = 6; i <= 80; ++i) chain.schedule(Step(i), 1, {20, 23});
  EXPECT_NO_THROW(chain.schedule(17, 1, {20, 22}));
  expect_throw<StateError>([&] { chain.schedule(16, 1, {20, 22}); }, {"report steps in order"});
}

}  // namespace
}  // namespace moetap
