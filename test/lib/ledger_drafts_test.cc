// Drafts that form a tree: those that stand are not the first that were scheduled (H30). Each story
// at several block sizes.
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
using test::kDraftSlots;
using test::Tokens;

class LedgerDrafts : public test::DraftsWorld {};

INSTANTIATE_TEST_SUITE_P(BlockSize, LedgerDrafts, testing::Values(1, 2, 3, 16),
                         testing::PrintToStringParamName());

// A prompt of two tokens, then A and the alternatives B and C for the position after it. A and C
// stand; B's row lies where C's belongs, of the same step.
TEST_P(LedgerDrafts, ATokenThatWasNotToldHasNoRow) {
  compute(1, {0, 2});
  ledger.accept(1, 1, 3);
  compute(2, {2, 5});
  expect_throw<StateError>([&] { ledger.accept(2, 1, 5); },
                           {"step 2", "5 tokens of request 1", "[3, 4)", "Drafts::chain"});
  EXPECT_EQ(read(ledger.finish(1, 5)), "1.0 1.1 2.0 missing");
}

// The first token of a step, and those of a prompt, are known before it: they are no alternatives.
TEST_P(LedgerDrafts, ATokenThatIsNoDraftStandsWhereItIs) {
  compute(1, {0, 2});
  ledger.accept(1, 1, 3);
  compute(2, {2, 6});
  expect_throw<ArgumentError>(
      [&] {
        (void)ledger.accept(2, 1, 5, Tokens{1, 2}, 3);
      },
      {"step 2", "token 1 at place 0", "begin at token 1"});
  EXPECT_NO_THROW((void)ledger.accept(2, 1, 5, Tokens{0, 2}, 3));
}

TEST_P(LedgerDrafts, APromptIsNoDraftIfItIsComputedInPartsAndDraftsFollow) {
  ledger.abort(1);
  admit(1, 8);
  compute(1, {0, 4});
  compute(2, {4, 10});
  ledger.accept(1, 1, 8);
  EXPECT_EQ(read(ledger.rows_since(1, 0)), "1.0 1.1 1.2 1.3 2.0 2.1 2.2");
  (void)ledger.accept(2, 1, 10, Tokens{0, 1, 2, 3, 4}, 3);
  EXPECT_EQ(read(ledger.finish(1, 10)), "1.0 1.1 1.2 1.3 2.0 2.1 2.2 2.3 2.4");
}

TEST_P(LedgerDrafts, NorIfItIsComputedTogetherWithDrafts) {
  ledger.abort(1);
  admit(1, 4);
  compute(1, {0, 6});
  EXPECT_EQ(read(ledger.rows_since(1, 0)), "1.0 1.1 1.2");
  (void)ledger.accept(1, 1, 6, Tokens{0, 1, 2, 3, 4}, 3);
  EXPECT_EQ(read(ledger.finish(1, 6)), "1.0 1.1 1.2 1.3 1.4");
}

TEST_P(LedgerDrafts, ATokenThatStandsElsewhereIsFollowedByItsRow) {
  compute(1, {0, 2});
  ledger.accept(1, 1, 3);
  compute(2, {2, 5});
  const MovePlan moved = ledger.accept(2, 1, 5, Tokens{0, 2}, 3);
  EXPECT_EQ(moved.from, std::vector{slot_of(1, 4)});
  EXPECT_EQ(moved.to, std::vector{slot_of(1, 3)});
  EXPECT_EQ(move_rows(reader, moved, kAtOnce), 1u);
  compute(4, {4, 5});
  ledger.accept(4, 1, 6);
  EXPECT_EQ(read(ledger.finish(1, 6)), "1.0 1.1 2.0 2.2 4.0");
}

TEST_P(LedgerDrafts, ARowThatDidNotFollowIsNotClaimed) {
  compute(1, {0, 2});
  compute(2, {2, 5});
  (void)ledger.accept(2, 1, 5, Tokens{0, 2}, 3);
  EXPECT_EQ(read(ledger.finish(1, 5)), "1.0 1.1 2.0 stale");
}

TEST_P(LedgerDrafts, TokensThatStandWhereTheyWereComputedNeedNoMove) {
  compute(1, {0, 2});
  compute(2, {2, 6});
  const MovePlan moved = ledger.accept(2, 1, 5, Tokens{0, 1}, 3);
  EXPECT_TRUE(moved.from.empty());
  EXPECT_EQ(move_rows(reader, moved, kAtOnce), 0u);
  compute(3, {4, 5});  // the number was not used up
  EXPECT_EQ(read(ledger.rows_since(1, 0)), "1.0 1.1 2.0 2.1");
  (void)ledger.accept(3, 1, 6, Tokens{0}, 4);
  EXPECT_EQ(read(ledger.finish(1, 6)), "1.0 1.1 2.0 2.1 3.0");
}

TEST_P(LedgerDrafts, WhereNoDraftStandsNothingNeedsToBeTold) {
  compute(1, {0, 2});
  compute(2, {2, 6});
  ledger.accept(2, 1, 4);
  compute(3, {3, 7});
  (void)ledger.accept(3, 1, 5, Tokens{0}, 4);
  EXPECT_EQ(read(ledger.finish(1, 8)), "1.0 1.1 2.0 3.0 missing missing missing");
}

// The last tokens of the path come after a stop token, and stand no more.
TEST_P(LedgerDrafts, APathMayBeLongerThanWhatStandsOfIt) {
  compute(1, {0, 2});
  compute(2, {2, 9});
  move_rows(reader, ledger.accept(2, 1, 5, Tokens{0, 3, 4, 6}, 3), kAtOnce);
  EXPECT_EQ(read(ledger.finish(1, 7)), "1.0 1.1 2.0 2.3 missing missing");
}

TEST_P(LedgerDrafts, AnyOrderOfTheDraftsIsAPath) {
  compute(1, {0, 2});
  ledger.accept(1, 1, 3);
  compute(2, {2, 6});
  EXPECT_EQ(move_rows(reader, ledger.accept(2, 1, 7, Tokens{0, 2, 3, 1}, 3), kAtOnce), 3u);
  EXPECT_EQ(read(ledger.finish(1, 7)), "1.0 1.1 2.0 2.2 2.3 2.1");
}

TEST_P(LedgerDrafts, StepsInFlightBeginWhereTheTreeReallyEnds) {
  ledger.schedule(1, 1, {0, 2});
  ledger.schedule(2, 1, {2, 7});
  ledger.schedule(3, 1, {7, 12});
  ledger.schedule(4, 1, {12, 13});
  land(1, {0, 2});
  ledger.accept(1, 1, 3);
  land(2, {2, 7});
  const MovePlan first = ledger.accept(2, 1, 6, Tokens{0, 2, 4}, 5);
  ledger.schedule(3, 1, {5, 10});
  ledger.schedule(4, 1, {10, 11});
  EXPECT_EQ(move_rows(reader, first, kAtOnce), 2u);
  EXPECT_EQ(read(ledger.rows_since(1, 0)), "1.0 1.1 2.0 2.2 2.4");
  land(3, {5, 10});
  const MovePlan second = ledger.accept(3, 1, 8, Tokens{0, 3}, 6);
  ledger.schedule(4, 1, {7, 8});
  EXPECT_EQ(move_rows(reader, second, kAtOnce), 1u);
  land(4, {7, 8});
  ledger.accept(4, 1, 9);
  compute(7, {8, 11});
  EXPECT_EQ(move_rows(reader, ledger.accept(7, 1, 11, Tokens{0, 2}, 8), kAtOnce), 1u);
  EXPECT_EQ(read(ledger.finish(1, 11)), "1.0 1.1 2.0 2.2 2.4 3.0 3.3 4.0 7.0 7.2");
}

// The reader was too far ahead: the next step of the request lies where the row was.
TEST_P(LedgerDrafts, ARowThatALaterStepOverwroteFirstIsMissing) {
  compute(1, {0, 2});
  ledger.schedule(2, 1, {2, 5});
  ledger.schedule(3, 1, {5, 6});
  land(2, {2, 5});
  land(3, {4, 5});
  const MovePlan moved = ledger.accept(2, 1, 5, Tokens{0, 2}, 4);
  ledger.schedule(3, 1, {4, 5});
  EXPECT_EQ(move_rows(reader, moved, kAtOnce), 0u);
  ledger.accept(3, 1, 6);
  EXPECT_EQ(read(ledger.finish(1, 6)), "1.0 1.1 2.0 missing 3.0");
}

// Whether it was gone is seen when it is moved.
TEST_P(LedgerDrafts, ARowMovesFromWhereALaterStepWasReported) {
  for (const bool overwritten : {false, true}) {
    SCOPED_TRACE(overwritten);
    const RequestId request(overwritten ? 2 : 1);
    const Step step(overwritten ? 11 : 1);
    if (overwritten) admit(2, 2);
    compute(step, {0, 2}, request);
    ledger.schedule(step + 1, request, {2, 5});
    ledger.schedule(step + 2, request, {5, 6});
    land(step + 1, {2, 5}, request);
    ledger.schedule(step + 2, request, {4, 5});
    if (overwritten) land(step + 2, {4, 5}, request);
    const MovePlan moved = ledger.accept(step + 1, request, 5, Tokens{0, 2}, step + 3);
    EXPECT_EQ(move_rows(reader, moved, kAtOnce), overwritten ? 0u : 1u);
    EXPECT_EQ(read(ledger.finish(request, 5)),
              overwritten ? "11.0 11.1 12.0 missing" : "1.0 1.1 2.0 2.2");
  }
}

TEST_P(LedgerDrafts, AMoveWaitsForItsStepAndForNoLaterOne) {
  compute(1, {0, 2});
  ledger.schedule(2, 1, {2, 5});
  ledger.schedule(3, 1, {5, 8});
  const MovePlan moved = ledger.accept(2, 1, 5, Tokens{0, 2}, 4);
  expect_throw<TimeoutError>([&] { move_rows(reader, moved, kAtOnce); }, {"step 2"});
  land(2, {2, 5});
  EXPECT_EQ(move_rows(reader, moved, kAtOnce), 1u);
}

// Tokens that were not said to stand are not in the cache, whatever else is said.
TEST_P(LedgerDrafts, AHitOnDraftsHasTheirRowsOnceTheyStand) {
  compute(1, {0, 2});
  compute(2, {2, 48});
  Blocks hit = blocks_of(1);
  hit.resize(static_cast<std::size_t>(48 / GetParam()));
  EXPECT_EQ(ledger.cached_rows({hit, 48}), 3);
  ledger.admit({.request = 2, .num_tokens = 49, .placement = {hit, 48}});
  EXPECT_EQ(read(ledger.rows_since(2, 0)).substr(0, 28), "1.0 1.1 2.0 missing missing ");
  EXPECT_EQ(read(ledger.block_rows(hit.back())).find("2."), std::string::npos);
  move_rows(reader, ledger.accept(2, 1, 6, Tokens{0, 1, 45}, 3), kAtOnce);
  EXPECT_EQ(read(ledger.rows_since(2, 0)).substr(0, 28), "1.0 1.1 2.0 2.1 2.45 missing");
}

TEST_P(LedgerDrafts, RequestsOfOneRoundMayShareANumber) {
  admit(2, 2);
  ledger.schedule(1, 1, {0, 2});
  ledger.schedule(1, 2, {0, 2});
  land(1, {0, 2});
  land(1, {0, 2}, 2);
  ledger.schedule(2, 1, {2, 5});
  ledger.schedule(2, 2, {2, 6});
  ledger.schedule(3, 1, {5, 6});
  land(2, {2, 5});
  land(2, {2, 6}, 2);
  MovePlan moved = ledger.accept(2, 1, 5, Tokens{0, 2}, 4);
  ledger.schedule(3, 1, {4, 5});
  moved.append(ledger.accept(2, 2, 6, Tokens{0, 3, 1}, 4));
  EXPECT_EQ(moved.last_step, Step(2));
  EXPECT_EQ(move_rows(reader, moved, kAtOnce), 3u);
  EXPECT_EQ(read(ledger.finish(1, 5)), "1.0 1.1 2.0 2.2");
  EXPECT_EQ(read(ledger.finish(2, 6)), "1.0 1.1 2.0 2.3 2.1");
  MovePlan other;
  other.step = 5;
  expect_throw<ArgumentError>([&] { moved.append(other); }, {"step 5", "step 4"});
}

// Else a plan for the rows of the first would find those of the second.
TEST_P(LedgerDrafts, RequestsThatHadTheSameBlockMayNotShareANumber) {
  const std::int64_t count = 15 / GetParam() + 1;
  const std::int64_t room = count * GetParam();
  Blocks blocks = blocks_of(2);
  blocks.resize(static_cast<std::size_t>(count));
  ledger.admit({.request = 2, .num_tokens = room - 3, .placement = {blocks, 0}});
  compute(1, {0, 2});
  compute(1, {0, room - 3}, 2);
  compute(2, {2, 5});
  compute(2, {room - 3, room - 2}, 2);
  ledger.schedule(3, 2, {room - 2, room});
  move_rows(reader, ledger.accept(2, 1, 5, Tokens{0, 2}, 4), kAtOnce);
  const RowPlan plan = ledger.finish(1, 5);
  EXPECT_EQ(read(plan), "1.0 1.1 2.0 2.2");
  ledger.accept(2, 2, room - 1);

  Blocks more = blocks_of(1);  // position room + i is where position i of request 1 was
  const std::int64_t num_shared = 5 / GetParam() + 1;
  more.resize(static_cast<std::size_t>(num_shared));
  ledger.schedule(3, 2, {room - 2, room + 6}, more);
  memory->publish(3, {{slot_of(1, 3), 305}, {slot_of(1, 4), 306}});
  const Tokens path{0, 1, 2, 3, 4, 6};
  expect_throw<StateError>([&] { (void)ledger.accept(3, 2, room + 5, path, 4); },
                           {"step 4", "new step number"});
  EXPECT_EQ(move_rows(reader, ledger.accept(3, 2, room + 5, path, 5), kAtOnce), 1u);
  EXPECT_EQ(read(plan), "1.0 1.1 2.0 clobbered");
}

TEST_P(LedgerDrafts, RowsOfOldWeightsStayStale) {  // H29
  compute(1, {0, 2});
  compute(2, {2, 5});
  ledger.flush();
  EXPECT_TRUE(ledger.accept(2, 1, 5, Tokens{0, 2}, 3).from.empty());
  EXPECT_EQ(read(ledger.finish(1, 5)), "stale stale stale stale");
}

TEST_P(LedgerDrafts, DraftsMoveWithTheirBlocks) {  // H8
  compute(1, {0, 2});
  compute(2, {2, 5});
  std::vector<BlockMove> moves;
  for (std::int64_t i = 0; i * GetParam() < 5; ++i) {
    moves.push_back(
        {blocks_of(1)[static_cast<std::size_t>(i)], blocks_of(2)[static_cast<std::size_t>(i)]});
  }
  EXPECT_EQ(move_rows(reader, ledger.move(3, moves), kAtOnce), 5u);
  EXPECT_EQ(read(ledger.rows_since(1, 0)), "1.0");
  const MovePlan moved = ledger.accept(2, 1, 5, Tokens{0, 2}, 4);
  EXPECT_EQ(moved.to, std::vector{slot_of(2, 3)});
  EXPECT_EQ(move_rows(reader, moved, kAtOnce), 1u);
  EXPECT_EQ(read(ledger.finish(1, 5)), "1.0 1.1 2.0 2.2");
}

TEST_P(LedgerDrafts, APreemptedRunsStepsTellOfTokensOnly) {  // H10
  ledger.schedule(1, 1, {0, 2});
  ledger.schedule(2, 1, {2, 5});
  ledger.preempt(1);
  land(1, {0, 2});
  land(2, {2, 5});
  ledger.accept(1, 1, 3);
  EXPECT_TRUE(ledger.accept(2, 1, 5, Tokens{0, 2}, 3).from.empty());
  ledger.resume(1, {blocks_of(1), 0});
  compute(3, {0, 5});
  ledger.accept(3, 1, 6);
  EXPECT_EQ(read(ledger.finish(1, 6)), "3.0 3.1 3.2 3.3 3.4");
}

TEST_P(LedgerDrafts, NothingIsMovedForWhoDidNotAsk) {
  ledger.admit(
      {.request = 2, .num_tokens = 2, .placement = {blocks_of(2), 0}, .wants_rows = false});
  ledger.schedule(1, 2, {0, 2});
  ledger.schedule(2, 2, {2, 5});
  EXPECT_TRUE(ledger.accept(2, 2, 5, Tokens{0, 2}, 3).from.empty());
  ledger.schedule(3, 2, {4, 8});
  ledger.accept(3, 2, 7);
}

// Else its rows and those that were put could not be told apart.
TEST_P(LedgerDrafts, AStepIsNotInFlightUnderTheNumberOfAPut) {  // H11
  compute(1, {0, 2});
  compute(2, {2, 5});
  std::vector<BlockMove> moves;
  for (std::int64_t i = 0; i * GetParam() < 5; ++i) {
    const auto index = static_cast<std::size_t>(i);
    moves.push_back({blocks_of(1)[index], blocks_of(2)[index]});
  }
  move_rows(reader, ledger.move(3, moves), kAtOnce);
  ledger.schedule(4, 1, {5, 8});
  for (const TokenRange positions : {TokenRange{20, 23}, TokenRange{1, 2}}) {
    expect_throw<StateError>([&] { ledger.schedule(3, 1, positions); }, {"put under step 3"});
  }
  EXPECT_EQ(read(ledger.finish(1, 3)), "1.0 1.1");
}

// Whatever is refused changes nothing: the right call still does what it should.
TEST_P(LedgerDrafts, RefusesWhatCannotBe) {
  compute(1, {0, 2});
  compute(2, {2, 5});
  const auto accept = [&](std::int64_t num_tokens, const Tokens& accepted, Step moved_as) {
    return [=, this] { (void)ledger.accept(2, 1, num_tokens, accepted, moved_as); };
  };
  expect_throw<RangeError>(accept(5, {0, 3}, 3), {"token 3", "0 to 2", "step 2", "request 1"});
  expect_throw<RangeError>(accept(5, {-1, 2}, 3), {"token -1"});
  expect_throw<ArgumentError>(accept(5, {2, 2}, 3), {"token 2", "twice"});
  expect_throw<ArgumentError>(accept(5, {0}, 3), {"2 tokens stand from position 2", "names 1"});
  expect_throw<ArgumentError>(accept(-1, {0, 2}, 3), {"-1 tokens"});
  expect_throw<StateError>(accept(5, {0, 2}, 2), {"step 2", "already"});
  expect_throw<ArgumentError>(accept(5, {0, 2}, 0), {"step 0"});
  expect_throw<StateError>(
      [&] {
        (void)ledger.accept(1, 1, 5, Tokens{0, 2}, 3);
      },
      {"step 1", "request 1", "token 2"});
  expect_throw<StateError>([&] { (void)ledger.accept(2, 9, 5, Tokens{0, 2}, 3); }, {"request 9"});
  EXPECT_EQ(move_rows(reader, ledger.accept(2, 1, 5, Tokens{0, 2}, 3), kAtOnce), 1u);
  expect_throw<StateError>([&] { ledger.schedule(3, 1, {4, 5}); }, {"step 3"});
  expect_throw<StateError>([&] { (void)ledger.accept(2, 1, 5, Tokens{0, 2}, 4); }, {"once"});
  EXPECT_EQ(read(ledger.finish(1, 5)), "1.0 1.1 2.0 2.2");
}

TEST_P(LedgerDrafts, AChainNeedsNoTellingAndIsNoTree) {
  Ledger chain(kDraftSlots / GetParam(), GetParam(), Drafts::chain);
  chain.admit({.request = 1, .num_tokens = 2, .placement = {blocks_of(1), 0}});
  chain.schedule(1, 1, {0, 2});
  chain.schedule(2, 1, {2, 5});
  land(1, {0, 2});
  land(2, {2, 5});
  expect_throw<StateError>(
      [&] {
        (void)chain.accept(2, 1, 5, Tokens{0, 2}, 3);
      },
      {"token 2", "Drafts::chain"});
  (void)chain.accept(2, 1, 5, Tokens{0, 1}, 3);
  EXPECT_EQ(read(chain.rows_since(1, 0)), "1.0 1.1 2.0 2.1");
  chain.accept(2, 1, 5);
  EXPECT_EQ(read(chain.finish(1, 5)), "1.0 1.1 2.0 2.1");
}

}  // namespace
}  // namespace moetap
