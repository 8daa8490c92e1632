// A ledger with the buffer that its plans are read from, for tests that tell short stories.
#pragma once

#include <moetap/ledger.h>
#include <moetap/read_rows.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "test/lib/slot_memory.h"
#include "test/lib/throws.h"

namespace moetap::test {

using Blocks = std::vector<BlockId>;

// 16 blocks of 4. The row that step s writes for position p is the number 100 s + p.
class LedgerWorld : public testing::Test {
 protected:
  static constexpr int kBlock = 4;
  static constexpr Milliseconds kNow{0};

  explicit LedgerWorld(Drafts drafts = Drafts::chain) : ledger(16, kBlock, drafts) {}

  static std::uint32_t number(Step step, std::int64_t position) {
    return static_cast<std::uint32_t>(100 * step.value()) + static_cast<std::uint32_t>(position);
  }

  void admit(RequestId request, std::int64_t num_tokens, const Blocks& blocks,
             std::int64_t cached = 0) {
    ledger.admit({.request = request, .num_tokens = num_tokens, .placement = {blocks, cached}});
  }

  std::vector<std::pair<Slot, std::uint32_t>> rows_of(Step step, const Blocks& blocks,
                                                      TokenRange positions) {
    std::vector<std::pair<Slot, std::uint32_t>> rows;
    for (std::int64_t p = positions.start; p < positions.end; ++p) {
      const BlockId block = blocks.at(static_cast<std::size_t>(p / kBlock));
      rows.emplace_back(first_slot(block, kBlock) + p % kBlock, number(step, p));
    }
    return rows;
  }

  // The worker ran the step, over the positions of a request with these blocks.
  void land(Step step, const Blocks& blocks, TokenRange positions) {
    memory->publish(step, rows_of(step, blocks, positions));
  }

  // Decided and run.
  void compute(Step step, RequestId request, const Blocks& blocks, TokenRange positions,
               const Blocks& new_blocks = {}) {
    ledger.schedule(step, request, positions, new_blocks);
    land(step, blocks, positions);
  }

  // "P5" is a present row of step 5, "missing" etc. anything else: one word a position.
  std::string read(const RowPlan& plan) {
    const Routes routes = read_rows(reader, plan, kNow);
    std::string text;
    for (std::int64_t p = plan.range.start; p < plan.range.end; ++p) {
      if (!text.empty()) text += ' ';
      if (routes.state(p) != RowState::present) {
        text += row_state_name(routes.state(p));
        EXPECT_EQ(number_at(routes, p), 0xFFFF'FFFFu) << "position " << p;
        continue;
      }
      const std::uint32_t found = number_at(routes, p);
      EXPECT_EQ(found % 100, p) << "the row of another position";
      text += 'P' + std::to_string(found / 100);
    }
    return text;
  }

  Ledger ledger;
  SlotMemory* memory = new SlotMemory(ledger.num_slots());
  Reader reader{std::unique_ptr<SlotReadTransport>(memory)};
};

}  // namespace moetap::test
