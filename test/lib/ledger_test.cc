// What an engine does to requests, one story a hazard.
#include <moetap/error.h>
#include <moetap/ledger.h>
#include <moetap/read_rows.h>

#include "test/lib/ledger_world.h"

namespace moetap {
namespace {

using test::Blocks;
using test::expect_throw;
using test::number_at;

class LedgerTest : public test::LedgerWorld {};

TEST_F(LedgerTest, ReturnsOneRowLessThanTokens) {  // H19
  admit(1, 5, {3, 0});
  compute(1, 1, {3, 0}, {0, 3});
  compute(2, 1, {3, 0}, {3, 5});
  compute(3, 1, {3, 0}, {5, 6});
  const RowPlan plan = ledger.finish(1, 7);
  EXPECT_EQ(plan.range, (TokenRange{0, 6}));
  EXPECT_EQ(plan.last_step, Step(3));
  EXPECT_EQ(read(plan), "P1 P1 P1 P2 P2 P3");
}

TEST_F(LedgerTest, AMissingTailIsNamedNotCut) {  // H16
  admit(1, 4, {3, 0});
  compute(1, 1, {3, 0}, {0, 4});
  EXPECT_EQ(read(ledger.finish(1, 11)),
            "P1 P1 P1 P1 missing missing missing missing missing missing");
}

TEST_F(LedgerTest, AStepThatFailedLeavesMissingRows) {
  admit(1, 4, {3});
  compute(1, 1, {3}, {0, 2});
  ledger.schedule(2, 1, {2, 4});
  memory->fail(2, {14, 15});
  EXPECT_EQ(read(ledger.finish(1, 5)), "P1 P1 missing missing");
}

TEST_F(LedgerTest, WaitsForTheStepsOfItsRows) {
  admit(1, 4, {3});
  compute(1, 1, {3}, {0, 2});
  ledger.schedule(2, 1, {2, 4});
  const RowPlan plan = ledger.finish(1, 5);
  expect_throw<TimeoutError>([&] { read_rows(reader, plan, kNow); }, {"step 2"});
  const Routes early = read_rows(reader, plan);
  EXPECT_EQ(early.count(RowState::present), 2u);
  EXPECT_EQ(early.count(RowState::missing), 2u);
  land(2, {3}, {2, 4});
  EXPECT_EQ(read(plan), "P1 P1 P2 P2");
}

TEST_F(LedgerTest, APrefixHitReturnsTheFirstComputationsRows) {  // H9
  admit(1, 8, {5, 6});
  compute(1, 1, {5, 6}, {0, 8});
  ledger.finish(1, 9);
  admit(2, 10, {5, 6, 7}, 8);
  compute(2, 2, {5, 6, 7}, {8, 10});
  EXPECT_EQ(read(ledger.finish(2, 11)), "P1 P1 P1 P1 P1 P1 P1 P1 P2 P2");
}

TEST_F(LedgerTest, APrefixHitOnAStepInFlightWaitsForIt) {  // H9, H11
  admit(1, 8, {5, 6});
  ledger.schedule(1, 1, {0, 8});
  admit(2, 9, {5, 6, 7}, 8);
  ledger.schedule(2, 2, {8, 9});
  land(1, {5, 6}, {0, 8});
  land(2, {5, 6, 7}, {8, 9});
  EXPECT_EQ(read(ledger.finish(2, 10)), "P1 P1 P1 P1 P1 P1 P1 P1 P2");
}

TEST_F(LedgerTest, ABlockGivenOutAnewForgetsItsRows) {  // H9, H10
  admit(1, 4, {5});
  compute(1, 1, {5}, {0, 4});
  ledger.finish(1, 5);
  admit(2, 2, {5});
  compute(2, 2, {5}, {0, 2});
  ledger.finish(2, 3);
  // A hit that claims more than the block's owner has computed.
  admit(3, 5, {5, 6}, 4);
  EXPECT_EQ(read(ledger.finish(3, 5)), "P2 P2 missing missing");
}

TEST_F(LedgerTest, ABlockCachedInPartBecomesTheNewRequestsOwn) {  // H9
  admit(1, 4, {5});
  compute(1, 1, {5}, {0, 4});
  admit(2, 4, {5}, 2);
  compute(2, 2, {5}, {2, 4});
  EXPECT_EQ(read(ledger.finish(2, 5)), "P1 P1 P2 P2");
  EXPECT_EQ(read(ledger.finish(1, 5)), "clobbered clobbered clobbered clobbered");
  admit(3, 4, {5}, 1);
  EXPECT_EQ(read(ledger.finish(3, 5)), "P1 missing missing missing");
}

TEST_F(LedgerTest, NothingOfAPreemptedRunIsReturned) {  // H10
  admit(1, 6, {1, 2});
  compute(1, 1, {1, 2}, {0, 6});
  ledger.accept(1, 1, 7);
  compute(2, 1, {1, 2}, {6, 7});
  ledger.accept(2, 1, 8);
  ledger.preempt(1);
  EXPECT_EQ(read(ledger.rows_since(1, 0)), "");
  ledger.resume(1, {Blocks{2, 1}, 0});
  compute(3, 1, {2, 1}, {0, 3});
  EXPECT_EQ(read(ledger.rows_since(1, 0)), "P3 P3 P3");
  EXPECT_EQ(read(ledger.finish(1, 8)), "P3 P3 P3 missing missing missing missing");
}

TEST_F(LedgerTest, APreemptedRequestThatIsOverHasNoRows) {  // H10
  admit(1, 4, {1});
  compute(1, 1, {1}, {0, 4});
  ledger.preempt(1);
  EXPECT_EQ(read(ledger.finish(1, 5)), "missing missing missing missing");
  admit(2, 4, {1});
  compute(2, 2, {1}, {0, 4});
  ledger.preempt(2);
  EXPECT_EQ(ledger.abort(2).range, (TokenRange{0, 0}));
}

TEST_F(LedgerTest, AReusedBlockClobbersRowsThatWereNotRead) {  // H11
  admit(1, 4, {1});
  compute(1, 1, {1}, {0, 4});
  const RowPlan plan = ledger.finish(1, 5);
  admit(2, 2, {1});
  ledger.schedule(2, 2, {0, 2});
  EXPECT_EQ(read(plan), "P1 P1 P1 P1");  // not overwritten yet
  land(2, {1}, {0, 2});
  EXPECT_EQ(read(plan), "clobbered clobbered P1 P1");
  EXPECT_EQ(read(ledger.rows_since(2, 0)), "P2");
}

TEST_F(LedgerTest, PlansStayRightWithFourStepsInFlight) {  // H11
  admit(1, 4, {1});
  ledger.schedule(1, 1, {0, 4});
  const RowPlan plan = ledger.finish(1, 5);
  for (int i = 2; i <= 4; ++i) {
    admit(RequestId(i), 1, {1});
    ledger.schedule(Step(i), RequestId(i), {0, 1});
    ledger.abort(RequestId(i));
  }
  land(1, {1}, {0, 4});
  EXPECT_EQ(read(plan), "P1 P1 P1 P1");
  for (Step step = 2; step <= 4; ++step) {
    land(step, {1}, {0, 1});
    EXPECT_EQ(read(plan), "clobbered P1 P1 P1");
  }
}

// The engine gives a running request's block away without a word.
TEST_F(LedgerTest, ABlockGivenToTwoIsLostToTheFirst) {  // H11
  admit(1, 8, {1, 2});
  compute(1, 1, {1, 2}, {0, 8});
  admit(2, 4, {2});
  compute(2, 2, {2}, {0, 4});
  EXPECT_EQ(read(ledger.rows_since(1, 0)), "P1 P1 P1 P1 clobbered clobbered clobbered");
  expect_throw<StateError>([&] { ledger.schedule(3, 1, {7, 8}); }, {"block 2", "another request"});
  EXPECT_EQ(read(ledger.finish(2, 5)), "P2 P2 P2 P2");
}

TEST_F(LedgerTest, RejectedTokensAreCutOrOverwritten) {  // H17
  admit(1, 2, {1, 2});
  compute(1, 1, {1, 2}, {0, 2});
  ledger.accept(1, 1, 3);
  compute(2, 1, {1, 2}, {2, 6});  // one token and three drafts, of which one is accepted
  ledger.accept(2, 1, 5);
  EXPECT_EQ(read(ledger.rows_since(1, 0)), "P1 P1 P2 P2");
  compute(3, 1, {1, 2}, {4, 5});
  EXPECT_EQ(read(ledger.finish(1, 6)), "P1 P1 P2 P2 P3");
}

// With steps in flight the scheduler assumes that all drafts will be accepted; the worker knows
// better, and the scheduler learns of it.
TEST_F(LedgerTest, AStepInFlightIsReportedAgainWithItsRealPositions) {  // H17
  admit(1, 1, {1, 2, 3});
  compute(1, 1, {1, 2, 3}, {0, 1});
  ledger.accept(1, 1, 2);
  ledger.schedule(2, 1, {1, 4});
  ledger.schedule(3, 1, {4, 7});
  ledger.schedule(4, 1, {7, 10});
  land(2, {1, 2, 3}, {1, 4});  // one of two drafts accepted
  ledger.accept(2, 1, 4);
  ledger.schedule(3, 1, {3, 6});
  EXPECT_EQ(read(ledger.rows_since(1, 0)), "P1 P2 P2");
  land(3, {1, 2, 3}, {3, 6});  // none
  ledger.accept(3, 1, 5);
  ledger.schedule(4, 1, {4, 7});
  land(4, {1, 2, 3}, {4, 7});
  EXPECT_EQ(read(ledger.finish(1, 8)), "P1 P2 P2 P3 P4 P4 P4");
}

// An engine that does not say where the step in flight really began loses rows, and is told so.
TEST_F(LedgerTest, RejectedDraftsAreNoRowsOfAStepThatWasNotReportedAgain) {  // H17
  admit(1, 8, {0, 1, 2, 3});
  compute(1, 1, {0, 1, 2, 3}, {0, 8});
  ledger.accept(1, 1, 9);
  ledger.schedule(2, 1, {8, 12});   // three drafts
  ledger.schedule(3, 1, {12, 16});  // as if all of them were accepted
  land(2, {0, 1, 2, 3}, {8, 12});
  ledger.accept(2, 1, 10);  // none is
  ledger.accept(3, 1, 13);
  const RowPlan plan = ledger.finish(1, 13);
  const char* const expected = "P1 P1 P1 P1 P1 P1 P1 P1 P2 missing missing missing";
  EXPECT_EQ(read(plan), expected);
  land(3, {0, 1, 2, 3}, {9, 13});  // where it began
  EXPECT_EQ(read(plan), expected);
}

TEST_F(LedgerTest, RejectedDraftsThatMovedAreNoRowsEither) {  // H8, H17
  admit(1, 4, {0, 1, 2});
  compute(1, 1, {0, 1, 2}, {0, 4});
  ledger.accept(1, 1, 5);
  compute(2, 1, {0, 1, 2}, {4, 8});
  ledger.schedule(3, 1, {8, 9});
  land(3, {0, 1, 2}, {8, 9});
  const BlockMove moves[] = {{1, 5}, {2, 6}};
  EXPECT_EQ(move_rows(reader, ledger.move(4, moves), kNow), 5u);
  const BlockMove again[] = {{5, 7}};
  EXPECT_EQ(move_rows(reader, ledger.move(5, again), kNow), 4u);
  ledger.accept(2, 1, 7);  // the last two drafts are rejected, step 3 is still on its way
  EXPECT_EQ(read(ledger.rows_since(1, 4)), "P2 P2");
  ledger.accept(3, 1, 10);
  EXPECT_EQ(read(ledger.finish(1, 10)), "P1 P1 P1 P1 P2 P2 missing missing P3");
}

TEST_F(LedgerTest, AStepInFlightIsReportedAgainAfterOthersMoved) {  // H8, H17
  admit(1, 1, {1, 2});
  admit(2, 4, {3});
  compute(1, 1, {1, 2}, {0, 1});
  compute(2, 2, {3}, {0, 4});
  ledger.accept(1, 1, 2);
  ledger.schedule(3, 1, {1, 4});
  ledger.schedule(4, 1, {4, 7});
  const BlockMove moves[] = {{3, 9}};
  move_rows(reader, ledger.move(5, moves), Milliseconds(0));
  land(3, {1, 2}, {1, 4});
  ledger.accept(3, 1, 3);
  ledger.schedule(4, 1, {2, 5});
  land(4, {1, 2}, {2, 5});
  ledger.accept(4, 1, 6);
  EXPECT_EQ(read(ledger.finish(1, 6)), "P1 P3 P4 P4 P4");
  expect_throw<StateError>(
      [&] {
        ledger.schedule(4, 2, {3, 4});
      },
      {"request 2", "put under step 5"});
}

TEST_F(LedgerTest, ABlockThatOthersHitIsNotWrittenAnew) {  // H9
  admit(1, 4, {1, 2});
  compute(1, 1, {1, 2}, {0, 4});
  admit(2, 8, {1, 3}, 4);
  expect_throw<StateError>([&] { ledger.schedule(2, 1, {3, 4}); }, {"block 1", "others hit"});
  ledger.schedule(1, 1, {0, 4});  // the same again
  ledger.accept(1, 1, 5);
  compute(2, 1, {1, 2}, {4, 5});
  EXPECT_EQ(read(ledger.finish(1, 6)), "P1 P1 P1 P1 P2");
}

TEST_F(LedgerTest, AnOldStepCannotTakeTheRowsOfALaterOne) {  // H17
  admit(1, 4, {1});
  compute(1, 1, {1}, {0, 2});
  compute(2, 1, {1}, {1, 4});
  expect_throw<StateError>([&] { ledger.schedule(1, 1, {0, 2}); }, {"step 1", "later steps"});
  EXPECT_EQ(read(ledger.finish(1, 5)), "P1 P2 P2 P2");
}

TEST_F(LedgerTest, AsksOnlyForWhatIsNew) {  // H18
  admit(1, 4, {1, 2});
  compute(1, 1, {1, 2}, {0, 4});
  ledger.accept(1, 1, 5);
  Routes all = read_rows(reader, ledger.rows_since(1, 0), kNow);
  EXPECT_EQ(all.range(), (TokenRange{0, 4}));
  EXPECT_EQ(ledger.rows_since(1, 4).range, (TokenRange{4, 4}));
  compute(2, 1, {1, 2}, {4, 5});
  ledger.accept(2, 1, 6);
  all.append(read_rows(reader, ledger.rows_since(1, all.range().end), kNow));
  EXPECT_EQ(all.range(), (TokenRange{0, 5}));
  EXPECT_EQ(number_at(all, 4), number(2, 4));
  expect_throw<RangeError>([&] { ledger.rows_since(1, 6); }, {"position 6", "0 to 5"});
  expect_throw<RangeError>([&] { ledger.rows_since(1, -1); }, {"position -1"});
}

TEST_F(LedgerTest, ARequestStartsWhereItsCallerStands) {  // H18, H28
  ledger.admit({.request = 1, .num_tokens = 6, .placement = {Blocks{1, 2}, 0}, .start = 3});
  compute(1, 1, {1, 2}, {0, 6});
  const RowPlan plan = ledger.finish(1, 7);
  EXPECT_EQ(plan.range, (TokenRange{3, 6}));
  EXPECT_EQ(read(plan), "P1 P1 P1");
}

TEST_F(LedgerTest, AnAbortedRequestReturnsWhatItHas) {
  admit(1, 8, {1, 2});
  compute(1, 1, {1, 2}, {0, 3});
  EXPECT_EQ(read(ledger.abort(1)), "P1 P1 P1");
  expect_throw<StateError>([&] { ledger.abort(1); }, {"request 1", "not in the ledger"});
}

TEST_F(LedgerTest, AFlushMakesOlderRowsStale) {  // H29
  admit(1, 8, {1, 2});
  compute(1, 1, {1, 2}, {0, 6});
  admit(2, 4, {3});
  compute(2, 2, {3}, {0, 4});
  const RowPlan over = ledger.finish(2, 5);
  ledger.flush();
  compute(3, 1, {1, 2}, {6, 8});
  EXPECT_EQ(read(ledger.finish(1, 9)), "stale stale stale stale stale stale P3 P3");
  EXPECT_EQ(read(over), "P2 P2 P2 P2");  // all of it came from the old weights
  admit(4, 5, {3, 4}, 4);                // a cache that was not flushed
  EXPECT_EQ(ledger.cached_rows({Blocks{3, 4}, 4}), 0);
  EXPECT_EQ(read(ledger.finish(4, 5)), "stale stale stale stale");
}

TEST_F(LedgerTest, StepsInFlightAtAFlushAreStale) {  // H29
  admit(1, 4, {1});
  ledger.schedule(1, 1, {0, 2});
  ledger.flush();
  ledger.schedule(2, 1, {2, 4});
  land(1, {1}, {0, 2});
  land(2, {1}, {2, 4});
  EXPECT_EQ(read(ledger.finish(1, 5)), "stale stale P2 P2");
}

TEST_F(LedgerTest, KeepsNothingOfRequestsThatDidNotAsk) {
  ledger.admit(
      {.request = 1, .num_tokens = 8, .placement = {Blocks{1, 2}, 0}, .wants_rows = false});
  EXPECT_FALSE(ledger.wants_rows(1));
  EXPECT_EQ(ledger.num_wanting(), 0);
  ledger.schedule(1, 1, {0, 8});
  expect_throw<StateError>([&] { ledger.rows_since(1, 0); }, {"request 1", "wants_rows"});
  const RowPlan plan = ledger.finish(1, 9);
  EXPECT_EQ(plan.range.size(), 0);
  EXPECT_TRUE(plan.slots.empty());
  const int reads = memory->reads;
  read_rows(reader, plan, kNow);
  EXPECT_EQ(memory->reads, reads);

  admit(2, 9, {1, 2, 3}, 8);  // hits what was not captured
  EXPECT_EQ(ledger.num_wanting(), 1);
  EXPECT_EQ(ledger.cached_rows({Blocks{1, 2, 3}, 8}), 0);
  compute(2, 2, {1, 2, 3}, {8, 9});
  EXPECT_EQ(read(ledger.finish(2, 10)),
            "missing missing missing missing missing missing missing missing P2");
  EXPECT_EQ(ledger.num_wanting(), 0);
}

// The old rows of a block stay in the buffer when its new owner's are not published.
TEST_F(LedgerTest, ABlockOfARequestThatDidNotAskForgetsItsRows) {  // H9
  admit(1, 4, {1});
  compute(1, 1, {1}, {0, 4});
  ledger.finish(1, 5);
  ledger.admit({.request = 2, .num_tokens = 4, .wants_rows = false});
  ledger.schedule(2, 2, {0, 4}, Blocks{1});
  ledger.abort(2);
  admit(3, 5, {1, 2}, 4);
  EXPECT_EQ(read(ledger.finish(3, 5)), "missing missing missing missing");
}

TEST_F(LedgerTest, TellsHowMuchOfAHitHasRows) {
  admit(1, 6, {1, 2});
  compute(1, 1, {1, 2}, {0, 6});
  EXPECT_EQ(ledger.cached_rows({Blocks{1, 2, 3}, 8}), 6);
  EXPECT_EQ(ledger.cached_rows({Blocks{1, 2, 3}, 5}), 5);
  EXPECT_EQ(ledger.cached_rows({Blocks{2, 1}, 0}), 0);
  ledger.forget(Blocks{1});
  EXPECT_EQ(ledger.cached_rows({Blocks{1, 2, 3}, 8}), 0);
}

TEST_F(LedgerTest, ForgottenBlocksAreLost) {
  admit(1, 4, {1, 2});
  compute(1, 1, {1, 2}, {0, 4});
  ledger.forget(Blocks{1});
  EXPECT_EQ(read(ledger.finish(1, 5)), "clobbered clobbered clobbered clobbered");
}

TEST_F(LedgerTest, ReadsAWholeBlockForTheStore) {
  admit(1, 8, {1, 2});
  compute(1, 1, {1, 2}, {0, 6});
  EXPECT_EQ(read(ledger.block_rows(1)), "P1 P1 P1 P1");
  const Routes part = read_rows(reader, ledger.block_rows(2), kNow);
  EXPECT_EQ(part.count(RowState::present), 2u);
  EXPECT_EQ(part.count(RowState::missing), 2u);
  ledger.flush();
  EXPECT_EQ(read(ledger.block_rows(1)), "stale stale stale stale");
}

TEST_F(LedgerTest, AHeldBlockIsNotGivenAway) {  // H11
  admit(1, 8, {1, 2});
  compute(1, 1, {1, 2}, {0, 8});
  const RowPlan plan = ledger.finish(1, 9);
  {
    const Hold hold = ledger.hold(plan);
    EXPECT_TRUE(ledger.held(1) && ledger.held(2));
    EXPECT_FALSE(ledger.held(3));
    expect_throw<StateError>([&] { admit(2, 4, {3, 2}); }, {"block 2", "held", "request 1"});
    admit(2, 4, {3});
    expect_throw<StateError>([&] { ledger.schedule(2, 2, {0, 8}, Blocks{1}); }, {"block 1"});
    expect_throw<StateError>(
        [&] {
          (void)ledger.move(2, std::vector<BlockMove>{{3, 1}});
        },
        {"block 1"});
    expect_throw<StateError>([&] { (void)ledger.copy(2, 2, {3, 1}); }, {"block 1"});
    admit(3, 9, {1, 2, 4}, 8);  // a hit changes nothing in it
  }
  EXPECT_FALSE(ledger.held(1) || ledger.held(2));
  EXPECT_EQ(read(plan), "P1 P1 P1 P1 P1 P1 P1 P1");
  ledger.schedule(2, 2, {0, 8}, Blocks{1});
}

TEST_F(LedgerTest, HoldsAddUpAndMove) {
  admit(1, 4, {1});
  compute(1, 1, {1}, {0, 4});
  const RowPlan plan = ledger.finish(1, 5);
  Hold first = ledger.hold(plan);
  Hold second = ledger.hold(plan);
  first = Hold();
  EXPECT_TRUE(ledger.held(1));
  Hold third = std::move(second);
  EXPECT_TRUE(ledger.held(1));
  third = Hold();
  EXPECT_FALSE(ledger.held(1));
}

}  // namespace
}  // namespace moetap
