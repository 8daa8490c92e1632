// Steps whose rows never came: what a window that includes one may show, however many there were.
#include "ipc/table/lost_steps.h"

#include <moetap/read_transport.h>

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <vector>

#include "ipc/internal/shm_writer.h"
#include "test/ipc/shm_test.h"

namespace moetap {
namespace {

using test::state_of;
using Slots = std::vector<Slot>;

constexpr Slot kUnknown = Slot::max();

TEST(LostSteps, FindTheLastOneOfAWindow) {
  LostSteps lost;
  EXPECT_FALSE(lost.any());
  EXPECT_EQ(lost.last_in({1, 100}), Step(0));
  lost.add(10, 12, 8);
  lost.add(20, 20, 15);
  EXPECT_TRUE(lost.any());
  EXPECT_EQ(lost.last_in({1, 9}), Step(0));
  EXPECT_EQ(lost.last_in({1, 10}), Step(10));
  EXPECT_EQ(lost.last_in({11, 11}), Step(11));
  EXPECT_EQ(lost.last_in({1, 19}), Step(12));
  EXPECT_EQ(lost.last_in({13, 19}), Step(0));
  EXPECT_EQ(lost.last_in({}), Step(20));
  lost.add(22, 22, 20);  // no step came in between
  EXPECT_EQ(lost.last_in({21, 21}), Step(21));
  EXPECT_EQ(lost.last_in({21, 30}), Step(22));
}

TEST(LostSteps, CountAllForLostThatTheyHaveForgotten) {
  LostSteps lost;
  // Steps 1, 4, 7 and so on; the first two runs are forgotten.
  for (std::size_t i = 0; i < LostSteps::kRuns + 2; ++i)
    lost.add(Step(1 + 3 * i), Step(1 + 3 * i), Step(3 * i));
  EXPECT_EQ(lost.last_in({2, 3}), Step(3));
  EXPECT_EQ(lost.last_in({3, 6}), Step(4));
  EXPECT_EQ(lost.last_in({5, 6}), Step(0));
  EXPECT_EQ(lost.last_in({6, 7}), Step(7));
}

class ShmLostSteps : public test::ShmTest {
 protected:
  void publish(Step step, const test::Stored& slots) {
    writer.publish(step, slots, test::rows_of(endpoint.shape, step, slots));
  }

  ShmWriter writer{endpoint};
  std::unique_ptr<SlotReadTransport> reader = make_shm_reader(endpoint);
};

TEST_F(ShmLostSteps, H37HideOlderRowsFromWindowsThatIncludeThem) {
  publish(3, Slots{7, 8});
  writer.fail(5, unmarked(Slots{kUnknown}), "why");
  publish(6, Slots{8});
  EXPECT_EQ(state_of(*reader, 7, {3, 5}), RowState::missing);
  EXPECT_EQ(state_of(*reader, 7, {3, 6}), RowState::missing);
  EXPECT_EQ(state_of(*reader, 7, {5, 5}), RowState::missing);
  EXPECT_EQ(state_of(*reader, 7), RowState::missing);
  EXPECT_EQ(state_of(*reader, 7, {3, 4}), RowState::present);
  EXPECT_EQ(state_of(*reader, 7, {3, 3}), RowState::present);
  EXPECT_EQ(state_of(*reader, 7, {6, 6}), RowState::stale);
  EXPECT_EQ(state_of(*reader, 8, {3, 6}), RowState::present);
  EXPECT_EQ(state_of(*reader, 8, {3, 4}), RowState::clobbered);
  // A later reader knows it too.
  EXPECT_EQ(state_of(*make_shm_reader(endpoint), 7, {3, 5}), RowState::missing);
}

TEST_F(ShmLostSteps, AreThoseThatNameASlotTwiceOrOneThatIsNotThere) {
  publish(1, Slots{7});
  writer.fail(2, unmarked(Slots{1, 2}), "why");
  EXPECT_EQ(state_of(*reader, 7, {1, 2}), RowState::present) << "all its slots are known";
  writer.fail(3, test::Stored{1, 2, ~1}, "why");
  EXPECT_EQ(state_of(*reader, 7, {1, 3}), RowState::missing);
  publish(4, Slots{7});
  writer.fail(5, unmarked(Slots{Slot(endpoint.num_slots)}), "why");
  EXPECT_EQ(state_of(*reader, 7, {4, 5}), RowState::missing);
  EXPECT_EQ(state_of(*reader, 7, {4, 4}), RowState::present);
}

TEST_F(ShmLostSteps, StayLostWhenManyHaveFollowed) {
  publish(1, Slots{7});
  publish(2, Slots{8});
  Step step = 3;
  writer.fail(step++, unmarked(Slots{kUnknown}), "why");
  for (std::size_t i = 0; i <= LostSteps::kRuns; ++i) {
    publish(step++, Slots{8});
    writer.fail(step++, unmarked(Slots{kUnknown}), "why");
  }
  EXPECT_EQ(state_of(*reader, 7, {1, 3}), RowState::missing);
  EXPECT_EQ(state_of(*reader, 7, {1, 2}), RowState::missing) << "fails closed";
  EXPECT_EQ(state_of(*reader, 7, {1, 1}), RowState::present);
}

}  // namespace
}  // namespace moetap
