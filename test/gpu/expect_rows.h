// What a step's slots must hold for a reader.
#pragma once

#include <moetap/reader.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "test/gpu/scenario.h"

namespace moetap::test {

// That a step's rows are there, exact, and of this step. Not for slots that a later step took.
inline void expect_rows(Reader& reader, const Scenario& scenario, const ScenarioStep& step) {
  const std::size_t row_bytes = reader.shape().row_bytes();
  std::vector<std::byte> rows(step.slots.size() * row_bytes);
  std::vector<RowState> states(step.slots.size());
  const StepWindow window{step.step, step.step};
  reader.read(step.slots, {&window, 1}, rows, states);
  for (std::size_t i = 0; i < states.size(); ++i) {
    const Scenario::Row expected = scenario.expected(step.slots[i], window, step.step);
    EXPECT_EQ(row_state_name(states[i]), row_state_name(expected.state))
        << "step " << step.step << " token " << i;
    if (expected.state != RowState::present) continue;
    const auto row = rows.begin() + static_cast<std::ptrdiff_t>(i * row_bytes);
    EXPECT_TRUE(std::equal(expected.bytes.begin(), expected.bytes.end(), row))
        << "step " << step.step << " token " << i;
  }
}

}  // namespace moetap::test
