// Parts of a step's rows, one from each rank that computes some of its tokens, read as one.
#include <moetap/error.h>
#include <moetap/stages.h>

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "test/lib/slot_memory.h"
#include "test/lib/throws.h"

namespace moetap {
namespace {

using test::expect_throw;
using test::SlotMemory;

constexpr std::int64_t kSlots = 32;
constexpr Milliseconds kNow{0};

// Two ranks that publish a part of each step's tokens.
class PartsTest : public testing::Test {
 protected:
  PartsTest() {
    std::vector<std::unique_ptr<SlotReadTransport>> parts;
    for (SlotMemory*& memory : part) {
      auto own = std::make_unique<SlotMemory>(kSlots);
      memory = own.get();
      parts.push_back(std::move(own));
    }
    joined = join_parts(std::move(parts));
  }

  // The row's number, or its state.
  std::string read(Slot slot, StepWindow window) {
    std::uint32_t number = 0;
    RowState state{};
    joined->read({&slot, 1}, {&window, 1}, std::as_writable_bytes(std::span(&number, 1)),
                 {&state, 1});
    if (state == RowState::present) return std::to_string(number);
    EXPECT_EQ(number, 0xFFFF'FFFF);
    return std::string(row_state_name(state));
  }

  SlotMemory* part[2];
  std::unique_ptr<SlotReadTransport> joined;
};

TEST_F(PartsTest, ARowIsPresentWhereOneOfThemHasIt) {  // H6
  part[0]->publish(1, {{4, 104}, {5, 105}});
  part[1]->publish(1, {{6, 106}});
  joined->wait_for(1, kNow);
  EXPECT_EQ(read(4, {1, 1}), "104");
  EXPECT_EQ(read(5, {1, 1}), "105");
  EXPECT_EQ(read(6, {1, 1}), "106");
  EXPECT_EQ(read(7, {1, 1}), "missing");
}

TEST_F(PartsTest, ALaterRowOfAnotherPartIsNotTheOlderOne) {
  part[0]->publish(1, {{4, 104}});
  part[1]->publish(1, {});
  part[0]->publish(2, {});
  part[1]->publish(2, {{4, 204}});
  EXPECT_EQ(read(4, {2, 2}), "204");
  EXPECT_EQ(read(4, {3, 3}), "stale");
  part[1]->fail(3, {4});
  EXPECT_EQ(read(4, {3, 3}), "stale");
  EXPECT_EQ(read(4, {2, 2}), "stale");
}

TEST_F(PartsTest, WindowsOfSeveralStepsAreRefused) {
  part[0]->publish(1, {{4, 104}});
  part[1]->fail(2, {4});  // the row of step 1 would pass for one of steps 1 to 2
  expect_throw<ArgumentError>([&] { (void)read(4, {1, 2}); }, {"steps 1 to 2", "Ledger"});
}

TEST_F(PartsTest, OneSlotInTwoPartsIsAnError) {
  part[0]->publish(1, {{4, 104}});
  part[1]->publish(1, {{4, 105}});
  expect_throw<MismatchError>([&] { (void)read(4, {1, 1}); }, {"slot 4", "overlap"});
}

TEST_F(PartsTest, APutIsFoundWhereverTheSlotWasWritten) {
  part[0]->publish(1, {});
  part[1]->publish(1, {{4, 104}});
  const std::vector<Slot> slots{4, 5};
  const std::vector<RowState> states{RowState::present, RowState::missing};
  std::vector<std::byte> rows = test::number_row(204);
  rows.resize(8);
  joined->put(2, slots, rows, states);
  EXPECT_EQ(read(4, {2, 2}), "204");
  EXPECT_EQ(read(5, {2, 2}), "missing");
}

TEST_F(PartsTest, WaitingIsForAllParts) {
  part[0]->publish(1, {});
  expect_throw<TimeoutError>([&] { joined->wait_for(1, kNow); }, {"part 1"});
  part[1]->fail(1, {});
  expect_throw<StepFailed>([&] { joined->wait_for(1, kNow); }, {"in part 1"});
}

TEST(Parts, MustBeOfOneModel) {
  expect_throw<ArgumentError>([] { (void)join_parts({}); }, {"no parts"});
  std::vector<std::unique_ptr<SlotReadTransport>> parts;
  for (const int layer : {0, 1}) {
    parts.push_back(std::make_unique<SlotMemory>(kSlots, ModelShape({layer}, 2, 256)));
  }
  expect_throw<ArgumentError>([&] { (void)join_parts(std::move(parts)); },
                              {"part 1", "MoE layers 1 and 0"});
}

}  // namespace
}  // namespace moetap
