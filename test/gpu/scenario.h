// Steps of a pretended engine, the same in any process that asks with the same seed.
#pragma once

#include <moetap/shape.h>
#include <moetap/step.h>

#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "test/gpu/model.h"

namespace moetap::test {

// What is wrong with a step.
enum class Trouble {
  none,
  layer_missing,    // the last layer is not captured, by calls or in the graph (H3)
  graph_too_small,  // a graph is replayed that was recorded for fewer tokens (H13)
  bad_id,           // of no expert (H20)
  bad_slot,         // outside the buffer
  slot_twice,
};

struct ScenarioStep {
  Step step = 0;
  std::int64_t num_tokens = 0;
  std::int64_t padded_tokens = 0;         // rows a rank in this step's topk_ids
  std::vector<std::int64_t> dp_tokens{};  // of each rank
  bool graph = false;                     // replayed, else captured by calls
  std::vector<Slot> slots{};              // of this rank's tokens
  Trouble trouble = Trouble::none;
  std::vector<RequestSpan> requests{};              // whose the tokens are; may be empty
  std::optional<std::vector<TokenRange>> wanted{};  // as in StepInfo

  bool wants(std::int64_t token) const;
  bool wants_any() const { return !wanted || !wanted->empty(); }
  // Whether its trouble shows: a step of which nothing is wanted cannot fail, and a slot is
  // looked at only if its token is wanted.
  bool fails() const;
  // Whether not all the slots that it wrote are known.
  bool loses_slots() const;
};

// Any ranges, with chances for all and none; some meet.
std::optional<std::vector<TokenRange>> draw_wanted(std::mt19937_64& random, std::int64_t tokens);

struct Scenario {
  static constexpr std::int64_t kMaxTokens = 24;
  static constexpr std::int64_t kGraphTokens = 16;  // what the graphs are recorded for
  static constexpr std::int64_t kSlots = 60;        // few, so that steps write over each other
  static constexpr int kRanks = 3;
  static constexpr int kRank = 1;

  // Steps of every kind, the last one without trouble.
  Scenario(std::uint64_t seed, Router router, RankLayout layout, bool opt_in = false);
  // These steps, with this rank's rows only.
  Scenario(Router router, std::vector<ScenarioStep> steps);

  Router router;
  RankLayout layout;
  std::vector<ScenarioStep> steps;

  // Rows of topk_ids, those among them that some rank's router really made, and the first that is
  // this rank's.
  std::int64_t rows(const ScenarioStep& step) const;
  std::vector<TokenRange> real_rows(const ScenarioStep& step) const;
  std::int64_t first_row(const ScenarioStep& step) const;

  // What a reader with this window may find in a slot once all steps up to `last` are published:
  // the state, and the bytes if it is present.
  struct Row {
    RowState state = RowState::missing;
    std::vector<std::byte> bytes{};
  };
  Row expected(Slot slot, StepWindow window, Step last) const;
  // The last step in the window of which, or around which, it is not known what slots were written;
  // 0 if there is none.
  Step last_lost_in(StepWindow window) const;
  // Whether a step after this one has the slot's row.
  bool written_after(Slot slot, Step step) const;
};

// Steps 1 … count of 8 tokens each, captured by calls, without trouble, and no slot in two of them.
std::vector<ScenarioStep> plain_steps(int count);

}  // namespace moetap::test
