// A caller that keeps what a preempted run sampled: the rows are those of the run that sampled each
// token (H39).
#include <moetap/error.h>
#include <moetap/ledger.h>
#include <moetap/read_rows.h>

#include "test/lib/ledger_world.h"

namespace moetap {
namespace {

using test::Blocks;
using test::expect_throw;

class LedgerKeeping : public test::LedgerWorld {
 protected:
  // A prompt of 4 tokens and two that were sampled from it, by steps 1, 2.
  void SetUp() override {
    admit(1, 4, {1, 2});
    compute(1, 1, {1, 2}, {0, 4});
    ledger.accept(1, 1, 5);
    compute(2, 1, {1, 2}, {4, 5});
    ledger.accept(2, 1, 6);
  }
  void resume(Step step, std::int64_t num_tokens) {
    ledger.resume(1, {Blocks{3, 4, 5}, 0});
    compute(step, 1, {3, 4, 5}, {0, num_tokens});
  }
};

TEST_F(LedgerKeeping, TheRowsOfBothRunsMeet) {
  Routes routes = read_rows(reader, ledger.preempt_keeping(1), kNow);
  EXPECT_EQ(routes.range(), (TokenRange{0, 5}));
  resume(3, 6);
  ledger.accept(3, 1, 7);
  compute(4, 1, {3, 4, 5}, {6, 7});
  ledger.accept(4, 1, 8);
  const RowPlan plan = ledger.finish(1, 8);
  EXPECT_EQ(read(plan), "P3 P4");
  routes.append(read_rows(reader, plan, kNow));
  EXPECT_EQ(routes.range(), (TokenRange{0, 7}));
  for (std::int64_t p = 0; p < 7; ++p) {
    const Step step(p < 4 ? 1 : p < 5 ? 2 : p < 6 ? 3 : 4);
    EXPECT_EQ(test::number_at(routes, p), number(step, p)) << p;
  }
}

TEST_F(LedgerKeeping, IsAChoice) {
  ledger.preempt(1);
  resume(3, 6);
  EXPECT_EQ(read(ledger.finish(1, 7)), "P3 P3 P3 P3 P3 P3");
}

// That it was preempted once more, and not kept, tells nothing of what the kept run still sampled.
TEST_F(LedgerKeeping, ALateTokenOfAKeptRunHasNoRowAfterAnotherPreemption) {
  ledger.schedule(3, 1, {5, 6});
  EXPECT_EQ(read(ledger.preempt_keeping(1)), "P1 P1 P1 P1 P2");
  ledger.resume(1, {Blocks{3, 4, 5}, 0});
  ledger.preempt(1);
  land(3, {1, 2}, {5, 6});
  ledger.accept(3, 1, 7);
  ledger.resume(1, {Blocks{6, 7}, 0});
  compute(4, 1, {6, 7}, {0, 7});
  ledger.accept(4, 1, 8);
  EXPECT_EQ(read(ledger.finish(1, 8)), "missing P4");
}

TEST_F(LedgerKeeping, ALateTokenIsNotSampledByTheRunThatIsPreempted) {
  ledger.schedule(3, 1, {5, 6});
  ledger.preempt(1);
  ledger.resume(1, {Blocks{3, 4, 5}, 0});
  land(3, {1, 2}, {5, 6});
  ledger.accept(3, 1, 7);
  compute(4, 1, {3, 4, 5}, {0, 6});
  EXPECT_EQ(read(ledger.preempt_keeping(1)), "");
  ledger.resume(1, {Blocks{6, 7}, 0});
  compute(5, 1, {6, 7}, {0, 7});
  EXPECT_EQ(read(ledger.finish(1, 8)), "P5 P5 P5 P5 P5 P5 P5");
}

TEST_F(LedgerKeeping, WhatStreamsGoesOnWhereTheRunEnded) {
  Routes routes = read_rows(reader, ledger.rows_since(1, 0), kNow);
  const Routes kept = read_rows(reader, ledger.preempt_keeping(1), kNow);
  routes.append(kept.split(routes.range().end).second);
  EXPECT_EQ(read(ledger.rows_since(1, 5)), "");
  resume(3, 6);
  ledger.accept(3, 1, 7);
  EXPECT_EQ(read(ledger.rows_since(1, 5)), "P3");
  expect_throw<RangeError>([&] { ledger.rows_since(1, 4); },
                           {"position 4", "5 to 6", "preempt_keeping()"});
  EXPECT_EQ(read(ledger.abort(1)), "P3");
}

TEST_F(LedgerKeeping, EachRunKeepsWhatItSampled) {
  EXPECT_EQ(read(ledger.preempt_keeping(1)), "P1 P1 P1 P1 P2");
  ledger.resume(1, {Blocks{3, 4, 5}, 0});
  compute(3, 1, {3, 4, 5}, {0, 3});
  EXPECT_EQ(read(ledger.preempt_keeping(1)), "");  // it has sampled nothing
  resume(4, 6);
  ledger.accept(4, 1, 7);
  EXPECT_EQ(read(ledger.preempt_keeping(1)), "P4");
  resume(5, 7);
  EXPECT_EQ(read(ledger.finish(1, 8)), "P5");
}

// No token came of a prompt's rows until all of it was computed, at once or again.
TEST_F(LedgerKeeping, ARunThatSampledNothingKeepsNothing) {
  admit(2, 8, {6, 7});
  compute(3, 2, {6, 7}, {0, 4});
  const RowPlan plan = ledger.preempt_keeping(2);
  EXPECT_EQ(plan.range, (TokenRange{0, 0}));
  ledger.resume(2, {Blocks{8, 9}, 0});
  compute(4, 2, {8, 9}, {0, 8});
  EXPECT_EQ(read(ledger.rows_since(2, 0)), "P4 P4 P4 P4 P4 P4 P4");
  EXPECT_EQ(read(ledger.finish(2, 9)), "P4 P4 P4 P4 P4 P4 P4 P4");
}

// The step was in flight, and its row was not read; the next run's row of that position is of a
// token that it did not sample.
TEST_F(LedgerKeeping, ATokenThatWasSampledLateHasNoRow) {
  ledger.schedule(3, 1, {5, 6});
  EXPECT_EQ(read(ledger.preempt_keeping(1)), "P1 P1 P1 P1 P2");
  land(3, {1, 2}, {5, 6});
  ledger.accept(3, 1, 7);
  resume(4, 7);
  ledger.accept(4, 1, 8);
  EXPECT_EQ(read(ledger.rows_since(1, 5)), "missing P4");
  EXPECT_EQ(read(ledger.finish(1, 8)), "missing P4");
}

TEST_F(LedgerKeeping, ATokenThatWasSampledLaterThanTheResumeHasNone) {
  ledger.schedule(3, 1, {5, 6});
  EXPECT_EQ(ledger.preempt_keeping(1).range, (TokenRange{0, 5}));
  ledger.resume(1, {Blocks{3, 4, 5}, 0});
  ledger.schedule(4, 1, {0, 6});
  land(3, {1, 2}, {5, 6});
  ledger.accept(3, 1, 7);
  land(4, {3, 4, 5}, {0, 6});
  ledger.accept(4, 1, 7);
  compute(5, 1, {3, 4, 5}, {6, 7});
  ledger.accept(5, 1, 8);
  EXPECT_EQ(read(ledger.finish(1, 8)), "missing P5");
}

TEST_F(LedgerKeeping, ARowThatIsOverwrittenFirstSaysSo) {  // H11
  const RowPlan plan = ledger.preempt_keeping(1);
  {
    const Hold hold = ledger.hold(plan);
    expect_throw<StateError>([&] { admit(2, 4, {2}); }, {"block 2", "held", "request 1"});
  }
  admit(2, 4, {2});
  compute(3, 2, {2}, {0, 1});
  EXPECT_EQ(read(plan), "P1 P1 P1 P1 clobbered");
}

TEST_F(LedgerKeeping, StartsWhereItsCallerStands) {  // H18
  ledger.admit({.request = 2, .num_tokens = 4, .placement = {Blocks{6, 7}, 0}, .start = 2});
  compute(3, 2, {6, 7}, {0, 4});
  ledger.accept(3, 2, 5);
  const RowPlan plan = ledger.preempt_keeping(2);
  EXPECT_EQ(plan.range, (TokenRange{2, 4}));
  EXPECT_EQ(read(plan), "P3 P3");
  EXPECT_EQ(ledger.finish(2, 5).range, (TokenRange{4, 4}));
}

// A stop string takes back tokens that were kept already: the caller cuts them off.
TEST_F(LedgerKeeping, AnEndBeforeWhatWasKeptHasNoMoreRows) {
  EXPECT_EQ(ledger.preempt_keeping(1).range, (TokenRange{0, 5}));
  EXPECT_EQ(ledger.finish(1, 4).range, (TokenRange{5, 5}));
}

TEST_F(LedgerKeeping, KeepsNothingForWhoDidNotAsk) {
  ledger.admit(
      {.request = 2, .num_tokens = 4, .placement = {Blocks{6, 7}, 0}, .wants_rows = false});
  ledger.schedule(3, 2, {0, 4});
  ledger.accept(3, 2, 5);
  EXPECT_EQ(ledger.preempt_keeping(2).range.size(), 0);
  expect_throw<StateError>([&] { static_cast<void>(ledger.preempt_keeping(2)); }, {"preempted"});
  expect_throw<StateError>([&] { static_cast<void>(ledger.preempt_keeping(9)); }, {"request 9"});
}

}  // namespace
}  // namespace moetap
