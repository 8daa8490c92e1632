// What a scheduler cannot mean. The ledger is as it was afterwards.
#include <moetap/error.h>
#include <moetap/ledger.h>

#include <vector>

#include "test/lib/ledger_world.h"

namespace moetap {
namespace {

using test::Blocks;
using test::expect_throw;

class LedgerRefuses : public test::LedgerWorld {
 protected:
  void SetUp() override {
    admit(1, 6, {1, 2});
    compute(1, 1, {1, 2}, {0, 6});
  }
  // All of request 1 is as it was, and so are the other blocks.
  void TearDown() override {
    EXPECT_EQ(read(ledger.finish(1, 7)), "P1 P1 P1 P1 P1 P1");
    EXPECT_EQ(ledger.num_wanting(), 0);
  }
};

TEST_F(LedgerRefuses, ARequestTwice) {
  expect_throw<StateError>([&] { admit(1, 4, {3}); }, {"request 1", "already"});
  expect_throw<StateError>([&] { ledger.resume(1, {}); }, {"request 1", "not preempted"});
}

TEST_F(LedgerRefuses, BlocksThatDoNotExist) {
  expect_throw<RangeError>([&] { admit(2, 4, {3, 16}); }, {"block 16", "[0, 16)"});
  expect_throw<RangeError>([&] { admit(2, 4, {-1}); }, {"block -1"});
  expect_throw<RangeError>([&] { ledger.schedule(2, 1, {6, 9}, Blocks{16}); }, {"block 16"});
  expect_throw<RangeError>(
      [&] {
        (void)ledger.move(2, std::vector<BlockMove>{{1, 16}});
      },
      {"block 16"});
  expect_throw<RangeError>(
      [&] {
        (void)ledger.move(2, std::vector<BlockMove>{{-1, 3}});
      },
      {"block -1"});
  expect_throw<RangeError>([&] { ledger.forget(Blocks{16}); }, {"block 16"});
  expect_throw<RangeError>([&] { ledger.block_rows(16); }, {"block 16"});
  expect_throw<RangeError>([&] { ledger.cached_rows({Blocks{16}, 4}); }, {"block 16"});
  expect_throw<RangeError>([&] { ledger.held(16); }, {"block 16"});
}

TEST_F(LedgerRefuses, ABlockTwice) {
  expect_throw<ArgumentError>([&] { admit(2, 8, {3, 3}); }, {"block 3", "twice"});
  expect_throw<ArgumentError>([&] { admit(2, 8, {1, 1, 3}, 8); }, {"block 1", "twice"});
  expect_throw<ArgumentError>([&] { ledger.schedule(2, 1, {6, 9}, Blocks{3, 3}); }, {"block 3"});
  expect_throw<ArgumentError>(
      [&] {
        (void)ledger.move(2, std::vector<BlockMove>{{1, 3}, {2, 3}});
      },
      {"block 3"});
  expect_throw<ArgumentError>(
      [&] {
        (void)ledger.move(2, std::vector<BlockMove>{{1, 3}, {1, 4}});
      },
      {"block 1"});
}

TEST_F(LedgerRefuses, PositionsOutsideTheBlocks) {
  expect_throw<RangeError>([&] { ledger.schedule(2, 1, {6, 9}); }, {"[6, 9)", "[0, 8)"});
  expect_throw<RangeError>([&] { ledger.schedule(2, 1, {6, 13}, Blocks{3}); }, {"[0, 12)"});
  expect_throw<RangeError>([&] { ledger.schedule(2, 1, {-1, 2}); }, {"[-1, 2)"});
  expect_throw<RangeError>([&] { ledger.schedule(2, 1, {5, 4}); }, {"[5, 4)"});
  expect_throw<RangeError>([&] { (void)ledger.fill(2, 1, {6, 9}); }, {"[6, 9)"});
}

TEST_F(LedgerRefuses, MoreCachedThanThereIs) {
  expect_throw<ArgumentError>([&] { admit(2, 9, {1, 2}, 9); }, {"9 cached", "0 to 8"});
  expect_throw<ArgumentError>([&] { admit(2, 9, {1, 2}, -1); }, {"-1 cached"});
  expect_throw<ArgumentError>([&] { ledger.cached_rows({Blocks{1}, 5}); }, {"5 cached", "0 to 4"});
}

TEST_F(LedgerRefuses, AStartBeyondTheTokens) {
  expect_throw<ArgumentError>([&] { ledger.admit({.request = 2, .num_tokens = 4, .start = 5}); },
                              {"position 5", "4 tokens"});
  ledger.admit({.request = 2, .num_tokens = 4, .start = 4});
  expect_throw<ArgumentError>([&] { ledger.finish(2, 4); }, {"4 tokens", "position 4"});
  ledger.abort(2);
  expect_throw<ArgumentError>([&] { ledger.accept(1, 1, -1); }, {"-1 tokens"});
}

TEST_F(LedgerRefuses, FewerTokensThanARequestIsKnownToHave) {
  const std::vector<std::int64_t> all{0, 1, 2, 3, 4, 5};
  expect_throw<ArgumentError>([&] { ledger.accept(1, 1, 5); },
                              {"step 1", "5 tokens of request 1", "have 6", "6 or more"});
  expect_throw<ArgumentError>([&] { (void)ledger.accept(1, 1, 5, all, 2); },
                              {"step 1", "5 tokens of request 1", "have 6", "6 or more"});
  ledger.accept(1, 1, 7);
  expect_throw<ArgumentError>([&] { ledger.accept(1, 1, 6); }, {"6 tokens", "7 or more"});
  ledger.schedule(2, 1, {6, 7});
  ledger.accept(1, 1, 7);
}

TEST_F(LedgerRefuses, WritesToSharedBlocks) {  // H9
  admit(2, 9, {1, 2, 3}, 8);
  expect_throw<StateError>([&] { ledger.schedule(2, 2, {7, 9}); }, {"block 2", "shared", "copy()"});
  expect_throw<StateError>([&] { (void)ledger.fill(2, 2, {7, 9}); }, {"block 2", "shared"});
  compute(2, 2, {1, 2, 3}, {8, 9});
  ledger.abort(2);
}

TEST_F(LedgerRefuses, StepsThatAreNone) {
  for (const Step step : {Step(0), Step(std::uint64_t{1} << 63), Step::max()}) {
    expect_throw<ArgumentError>([&] { ledger.schedule(step, 1, {6, 7}); }, {"steps are 1 to"});
    expect_throw<ArgumentError>([&] { (void)ledger.fill(step, 1, {6, 7}); }, {"steps are 1 to"});
    expect_throw<ArgumentError>(
        [&] {
          (void)ledger.move(step, std::vector<BlockMove>{{1, 3}});
        },
        {"steps are 1 to"});
  }
}

TEST_F(LedgerRefuses, RequestsThatAreNotThere) {
  for (const auto& call : std::vector<std::function<void()>>{
           [&] {
             ledger.schedule(2, 9, {0, 1});
           },
           [&] { ledger.accept(1, 9, 1); }, [&] { ledger.preempt(9); },
           [&] { ledger.resume(9, {}); }, [&] { ledger.finish(9, 1); },
           [&] { ledger.rows_since(9, 0); },
           [&] {
             (void)ledger.fill(2, 9, {0, 1});
           },
           [&] {
             (void)ledger.copy(2, 9, {1, 3});
           },
           [&] { ledger.wants_rows(9); }}) {
    expect_throw<StateError>(call, {"request 9", "not in the ledger"});
  }
}

TEST_F(LedgerRefuses, WorkForAPreemptedRequest) {  // H10
  admit(2, 4, {3});
  ledger.preempt(2);
  expect_throw<StateError>([&] { ledger.schedule(2, 2, {0, 4}, Blocks{3}); }, {"preempted"});
  expect_throw<StateError>([&] { ledger.preempt(2); }, {"preempted"});
  expect_throw<StateError>([&] { (void)ledger.fill(2, 2, {0, 4}); }, {"preempted"});
  expect_throw<StateError>([&] { (void)ledger.copy(2, 2, {1, 3}); }, {"preempted"});
  ledger.abort(2);
}

TEST(Ledger, NeedsBlocks) {
  expect_throw<ArgumentError>([] { Ledger(0, 16); }, {"0 blocks"});
  expect_throw<ArgumentError>([] { Ledger(4, 0); }, {"0 slots"});
  expect_throw<ArgumentError>([] { Ledger(std::int64_t{1} << 50, 1 << 20); }, {"blocks"});
}

}  // namespace
}  // namespace moetap
