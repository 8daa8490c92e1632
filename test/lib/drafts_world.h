// A ledger with a worker whose drafts form trees, for tests that tell short stories.
#pragma once

#include <moetap/ledger.h>
#include <moetap/read_rows.h>

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "test/lib/ledger_world.h"

namespace moetap::test {

using Tokens = std::vector<std::int64_t>;

inline constexpr std::int64_t kDraftSlots = 96;
inline constexpr Milliseconds kAtOnce{0};

// Requests 1 and 2 have half of the blocks each, in descending order. The row of the i-th token of
// step s is the number 100 s + i.
class DraftsWorld : public testing::TestWithParam<int> {
 protected:
  DraftsWorld() { admit(1, 2); }

  Blocks blocks_of(RequestId request) const {
    const std::int64_t half = kDraftSlots / GetParam() / 2;
    Blocks blocks;
    const std::int64_t first = request == 1 ? 0 : half;
    for (std::int64_t i = half - 1; i >= 0; --i) blocks.emplace_back(first + i);
    return blocks;
  }
  Slot slot_of(RequestId request, std::int64_t position) const {
    const auto index = static_cast<std::size_t>(position / GetParam());
    return first_slot(blocks_of(request).at(index), GetParam()) + position % GetParam();
  }
  void admit(RequestId request, std::int64_t num_tokens) {
    ledger.admit(
        {.request = request, .num_tokens = num_tokens, .placement = {blocks_of(request), 0}});
  }

  // The worker ran the step of this request, which began at this position.
  void land(Step step, TokenRange positions, RequestId request = 1) {
    std::vector<std::pair<Slot, std::uint32_t>> rows;
    for (std::int64_t p = positions.start; p < positions.end; ++p) {
      rows.emplace_back(slot_of(request, p), 100 * step.value() + (p - positions.start));
    }
    memory->publish(step, rows);
  }
  void compute(Step step, TokenRange positions, RequestId request = 1) {
    ledger.schedule(step, request, positions);
    land(step, positions, request);
  }

  // "2.1" is the row of token 1 of step 2.
  std::string read(const RowPlan& plan) {
    const Routes routes = read_rows(reader, plan, kAtOnce);
    std::string text;
    for (std::int64_t p = plan.range.start; p < plan.range.end; ++p) {
      if (!text.empty()) text += ' ';
      const std::uint32_t number = number_at(routes, p);
      text += routes.state(p) == RowState::present
                  ? std::to_string(number / 100) + '.' + std::to_string(number % 100)
                  : std::string(row_state_name(routes.state(p)));
    }
    return text;
  }

  Ledger ledger{kDraftSlots / GetParam(), GetParam()};
  SlotMemory* memory = new SlotMemory(kDraftSlots);
  Reader reader{std::unique_ptr<SlotReadTransport>(memory)};
};

}  // namespace moetap::test
