// Rows that change places with their blocks, or come from elsewhere (H8).
#include <moetap/error.h>
#include <moetap/ledger.h>
#include <moetap/read_rows.h>

#include "test/lib/ledger_world.h"

namespace moetap {
namespace {

using test::Blocks;
using test::expect_throw;
using Moves = std::vector<BlockMove>;

class LedgerMoves : public test::LedgerWorld {
 protected:
  void SetUp() override {
    admit(1, 8, {1, 2});
    compute(1, 1, {1, 2}, {0, 6});
  }
};

TEST_F(LedgerMoves, RowsFollowTheirBlock) {
  const MovePlan move = ledger.move(2, Moves{{2, 5}});
  EXPECT_EQ(move_rows(reader, move, kNow), 2u);
  compute(3, 1, {1, 5}, {6, 8});
  EXPECT_EQ(read(ledger.finish(1, 9)), "P1 P1 P1 P1 P1 P1 P3 P3");
}

TEST_F(LedgerMoves, RowsThatDidNotFollowAreNotClaimed) {
  admit(2, 8, {3, 4});
  compute(2, 2, {3, 4}, {0, 8});
  ledger.finish(2, 9);
  (void)ledger.move(3, Moves{{2, 3}, {1, 6}});  // to a block with old rows, and to one without
  EXPECT_EQ(read(ledger.finish(1, 7)), "missing missing missing missing stale stale");
}

TEST_F(LedgerMoves, ASourceThatGotNewTokensFirstHasLostItsRows) {
  const MovePlan move = ledger.move(2, Moves{{2, 5}});
  admit(2, 1, {2});
  compute(3, 2, {2}, {0, 1});
  EXPECT_EQ(move_rows(reader, move, kNow), 1u);
  EXPECT_EQ(read(ledger.finish(1, 7)), "P1 P1 P1 P1 missing P1");
  EXPECT_EQ(read(ledger.finish(2, 2)), "P3");
}

// Both rows were written in one step, so only the number under which a row is put tells them apart.
TEST_F(LedgerMoves, AnOlderPlanDoesNotTakeTheMovedRowForItsOwn) {  // H11
  ledger.schedule(2, 1, {6, 8});
  admit(2, 4, {5});
  ledger.schedule(2, 2, {0, 4});
  auto rows = rows_of(2, {1, 2}, {6, 8});
  for (const auto& row : rows_of(2, {5}, {0, 4})) rows.push_back(row);
  memory->publish(2, rows);
  const RowPlan plan = ledger.finish(2, 5);
  move_rows(reader, ledger.move(3, Moves{{2, 5}}), kNow);
  EXPECT_EQ(read(plan), "clobbered clobbered clobbered clobbered");
  EXPECT_EQ(read(ledger.finish(1, 9)), "P1 P1 P1 P1 P1 P1 P2 P2");
}

TEST_F(LedgerMoves, BlocksTradePlaces) {
  admit(2, 4, {3});
  compute(2, 2, {3}, {0, 4});
  EXPECT_EQ(move_rows(reader, ledger.move(3, Moves{{1, 3}, {3, 2}, {2, 1}}), kNow), 10u);
  compute(4, 1, {3, 1}, {6, 8});
  EXPECT_EQ(read(ledger.finish(1, 9)), "P1 P1 P1 P1 P1 P1 P4 P4");
  EXPECT_EQ(read(ledger.finish(2, 5)), "P2 P2 P2 P2");
}

TEST_F(LedgerMoves, EveryoneWhoSharesTheBlockFollows) {
  admit(2, 9, {1, 3, 4}, 4);
  compute(2, 2, {1, 3, 4}, {4, 9});
  move_rows(reader, ledger.move(3, Moves{{1, 7}}), kNow);
  admit(3, 5, {7, 8}, 4);  // the cache followed too
  EXPECT_EQ(read(ledger.finish(1, 7)), "P1 P1 P1 P1 P1 P1");
  EXPECT_EQ(read(ledger.finish(2, 10)), "P1 P1 P1 P1 P2 P2 P2 P2 P2");
  EXPECT_EQ(read(ledger.finish(3, 5)), "P1 P1 P1 P1");
}

TEST_F(LedgerMoves, WhoHadTheDestinationHasLostIt) {
  admit(2, 4, {3});
  compute(2, 2, {3}, {0, 4});
  move_rows(reader, ledger.move(3, Moves{{1, 3}}), kNow);
  EXPECT_EQ(read(ledger.finish(2, 5)), "clobbered clobbered clobbered clobbered");
}

TEST_F(LedgerMoves, WhoHadLostABlockBeforeItMovedDoesNotFollow) {  // H11
  admit(2, 4, {2});                                                // while request 1 still has it
  compute(2, 2, {2}, {0, 4});
  move_rows(reader, ledger.move(3, Moves{{2, 5}}), kNow);
  EXPECT_EQ(read(ledger.finish(1, 7)), "P1 P1 P1 P1 clobbered clobbered");
  EXPECT_EQ(read(ledger.finish(2, 5)), "P2 P2 P2 P2");
}

TEST_F(LedgerMoves, NothingIsLeftWhereTheBlockWas) {  // H9
  move_rows(reader, ledger.move(2, Moves{{1, 3}}), kNow);
  admit(2, 5, {1, 4}, 4);  // a cache that did not follow
  EXPECT_EQ(read(ledger.finish(2, 5)), "missing missing missing missing");
}

TEST_F(LedgerMoves, OnCopyTheOthersStay) {
  admit(2, 9, {1, 2, 3}, 8);
  move_rows(reader, ledger.copy(2, 2, {2, 4}), kNow);
  compute(3, 2, {1, 4, 3}, {7, 9});  // now it may write there
  compute(4, 1, {1, 2}, {6, 8});
  EXPECT_EQ(read(ledger.finish(2, 10)), "P1 P1 P1 P1 P1 P1 missing P3 P3");
  EXPECT_EQ(read(ledger.finish(1, 9)), "P1 P1 P1 P1 P1 P1 P4 P4");
  expect_throw<StateError>([&] { (void)ledger.copy(5, 1, {2, 3}); }, {"request 1"});
}

TEST_F(LedgerMoves, OnlyABlockThatTheRequestHasIsCopied) {
  expect_throw<StateError>(
      [&] {
        (void)ledger.copy(2, 1, {3, 4});
      },
      {"block 3", "does not have it"});
  expect_throw<StateError>([&] { (void)ledger.copy(2, 1, {2, 2}); }, {"same block"});
  EXPECT_EQ(read(ledger.finish(1, 7)), "P1 P1 P1 P1 P1 P1");
}

TEST_F(LedgerMoves, StaleRowsStayStale) {  // H29
  ledger.flush();
  compute(2, 1, {1, 2}, {6, 7});
  move_rows(reader, ledger.move(3, Moves{{2, 5}}), kNow);
  EXPECT_EQ(read(ledger.finish(1, 8)), "stale stale stale stale stale stale P2");
}

TEST_F(LedgerMoves, AMoveWaitsForStepsInFlight) {
  ledger.schedule(2, 1, {6, 8});
  const MovePlan move = ledger.move(3, Moves{{2, 5}});
  expect_throw<TimeoutError>([&] { move_rows(reader, move, kNow); }, {"step 2"});
  land(2, {1, 2}, {6, 8});
  EXPECT_EQ(move_rows(reader, move, kNow), 4u);
  EXPECT_EQ(read(ledger.finish(1, 9)), "P1 P1 P1 P1 P1 P1 P2 P2");
}

// Else the step would come after the row that was put, and over it.
TEST_F(LedgerMoves, AMoveWaitsForStepsThatStillWriteToTheDestination) {
  admit(2, 4, {5});
  ledger.schedule(2, 2, {0, 4});
  ledger.abort(2);
  const MovePlan move = ledger.move(3, Moves{{1, 5}});
  expect_throw<TimeoutError>([&] { move_rows(reader, move, kNow); }, {"step 2"});
  land(2, {5}, {0, 4});
  EXPECT_EQ(move_rows(reader, move, kNow), 4u);
  EXPECT_EQ(read(ledger.finish(1, 7)), "P1 P1 P1 P1 P1 P1");
}

TEST_F(LedgerMoves, PutsTakeAStepOfTheirOwn) {  // H11
  expect_throw<StateError>([&] { (void)ledger.move(1, Moves{{1, 3}}); }, {"step 1", "already"});
  expect_throw<StateError>([&] { (void)ledger.copy(1, 1, {1, 3}); }, {"step 1", "already"});
  expect_throw<StateError>([&] { (void)ledger.fill(1, 1, {6, 8}); }, {"step 1", "already"});
  EXPECT_EQ(read(ledger.rows_since(1, 0)), "P1 P1 P1 P1 P1 P1");
  for (const Step step : {Step(2), Step(3), Step(4)}) {
    if (step == 2) (void)ledger.move(step, Moves{{5, 6}});
    if (step == 3) (void)ledger.copy(step, 1, {1, 3});
    if (step == 4) (void)ledger.fill(step, 1, {6, 7});
    expect_throw<StateError>(
        [&] {
          ledger.schedule(step, 1, {6, 8});
        },
        {"step " + std::to_string(step.value()), "a step number of its own"});
    expect_throw<StateError>([&] { (void)ledger.move(step, Moves{{8, 9}}); }, {"already"});
  }
  ledger.schedule(5, 1, {6, 8});
}

TEST_F(LedgerMoves, RowsThatComeFromElsewhereArePresent) {
  admit(2, 8, {5, 6});
  const FillPlan plan = ledger.fill(2, 2, {0, 6});
  std::vector<std::byte> rows;
  for (std::int64_t p = 0; p < 6; ++p) {
    const auto row = test::number_row(number(9, p));
    rows.insert(rows.end(), row.begin(), row.end());
  }
  EXPECT_EQ(read(ledger.rows_since(2, 0)), "missing missing missing missing missing missing");
  fill_rows(reader, plan, rows, kNow);
  compute(3, 2, {5, 6}, {6, 8});
  admit(3, 9, {5, 6, 7}, 8);
  EXPECT_EQ(read(ledger.finish(2, 9)), "P9 P9 P9 P9 P9 P9 P3 P3");
  EXPECT_EQ(read(ledger.finish(3, 9)), "P9 P9 P9 P9 P9 P9 P3 P3");
}

TEST_F(LedgerMoves, AFillWaitsForStepsThatStillWriteThere) {
  ledger.schedule(2, 1, {6, 8});
  ledger.abort(1);
  admit(2, 4, {2});
  const FillPlan plan = ledger.fill(3, 2, {0, 1});
  const auto row = test::number_row(number(9, 0));
  expect_throw<TimeoutError>([&] { fill_rows(reader, plan, row, kNow); }, {"step 2"});
}

TEST_F(LedgerMoves, NothingIsFilledForWhoDidNotAsk) {
  ledger.admit({.request = 2, .num_tokens = 4, .placement = {Blocks{5}, 0}, .wants_rows = false});
  const FillPlan plan = ledger.fill(2, 2, {0, 4});
  EXPECT_TRUE(plan.slots.empty());
  fill_rows(reader, plan, {}, kNow);
  EXPECT_TRUE(ledger.copy(3, 2, {5, 6}).from.empty());
}

// The layout without stamps claims nothing, but what the ledger knows it says.
TEST_F(LedgerMoves, WithoutStampsRowsAreUnverifiedAndKnownGapsAreNamed) {
  memory->unstamped = true;
  admit(2, 6, {1, 5}, 4);
  ledger.flush();
  ledger.schedule(2, 2, {4, 5});
  land(2, {1, 5}, {4, 5});
  const Routes routes = read_rows(reader, ledger.finish(2, 7));
  EXPECT_EQ(routes.state(0), RowState::stale);
  EXPECT_EQ(test::number_at(routes, 0), 0xFFFF'FFFFu);
  EXPECT_EQ(routes.state(4), RowState::unverified);
  EXPECT_EQ(test::number_at(routes, 4), number(2, 4));
  EXPECT_EQ(routes.state(5), RowState::missing);
}

TEST(LedgerCopies, CopiesABlockThatItsRequestLostAndGotAgain) {
  Ledger ledger(8, 1);
  ledger.admit({.request = 1, .num_tokens = 3, .placement = {test::Blocks{0, 1, 2}, 0}});
  ledger.schedule(1, 1, {0, 3});
  ledger.accept(1, 1, 4);
  ledger.forget(test::Blocks{0});
  ledger.schedule(2, 1, {3, 4}, test::Blocks{0});
  ledger.accept(2, 1, 5);
  const MovePlan plan = ledger.copy(3, 1, {0, 5});
  EXPECT_EQ(plan.from, std::vector<Slot>{0});
  EXPECT_EQ(ledger.rows_since(1, 0).slots, (std::vector<Slot>{0, 1, 2, 5}));
}

}  // namespace
}  // namespace moetap
