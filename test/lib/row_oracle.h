// Knows every row by identity: which one lies in each slot of the buffer, and which one belongs to
// each position of a request. Shares no code with what it checks.
#pragma once

#include <moetap/row_plan.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "slot_memory.h"

namespace moetap::test {

struct Row {
  Step step;
  std::uint32_t number;
};
using RowRef = std::shared_ptr<const Row>;  // null: no row
using RowRefs = std::vector<RowRef>;

inline RowRef& at(RowRefs& rows, std::int64_t i) { return rows[static_cast<std::size_t>(i)]; }
inline const RowRef& at(const RowRefs& rows, std::int64_t i) {
  return rows[static_cast<std::size_t>(i)];
}

class RowOracle {
 public:
  explicit RowOracle(std::int64_t num_slots)
      : buffer(static_cast<std::size_t>(num_slots)), belongs(buffer.size()) {}

  RowRef make(Step step) { return std::make_shared<Row>(Row{step, ++numbers_}); }
  RowRef move(const RowRef& row, Step step) {
    return std::make_shared<Row>(Row{step, row->number});
  }

  // Rows of later steps stay.
  void put(Slot slot, Step step, const RowRef& row) {
    RowRef& there = at(buffer, slot);
    if (there == nullptr || there->step <= step) there = row;
  }

  // The rows of some positions, as decided when they were asked for.
  struct Expected {
    std::vector<Slot> slots;  // of the first positions; the others have none
    RowRefs rows;
    Step flushed = 0;  // rows of steps up to this one are stale
  };

  // What a read at this moment must say.
  std::vector<RowState> states(const Expected& expected) const {
    std::vector<RowState> states;
    for (std::size_t i = 0; i < expected.rows.size(); ++i) states.push_back(state(expected, i));
    return states;
  }

  static void check(const Expected& expected, const std::vector<RowState>& states,
                    const Routes& routes) {
    ASSERT_EQ(routes.states().size(), states.size());
    for (std::size_t i = 0; i < states.size(); ++i) {
      const std::int64_t position = routes.range().start + static_cast<std::int64_t>(i);
      ASSERT_EQ(row_state_name(routes.state(position)), row_state_name(states[i]))
          << "position " << position;
      ASSERT_EQ(number_at(routes, position),
                states[i] == RowState::present ? expected.rows[i]->number : 0xFFFF'FFFF)
          << "position " << position;
    }
  }

  RowRefs buffer;   // by slot: what was written there last
  RowRefs belongs;  // by slot: what belongs there, written or not

 private:
  RowState state(const Expected& expected, std::size_t i) const {
    const RowRef& row = expected.rows[i];
    if (i >= expected.slots.size() || row == nullptr) return RowState::missing;
    if (row->step <= expected.flushed) return RowState::stale;
    const RowRef& there = at(buffer, expected.slots[i]);
    if (there == row) return RowState::present;
    if (there == nullptr) return RowState::missing;
    EXPECT_NE(there->step, row->step) << "two rows that nothing tells apart";
    return there->step < row->step ? RowState::stale : RowState::clobbered;
  }

  std::uint32_t numbers_ = 0;
};

}  // namespace moetap::test
