#include "test/gpu/scenario.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

namespace moetap::test {
namespace {

Trouble draw_trouble(std::mt19937_64& random, RankLayout layout) {
  switch (random() % 12) {
    case 0:
      return Trouble::layer_missing;
    case 1:
      // Any rows that are long enough will do in this layout.
      return layout == RankLayout::concatenated ? Trouble::none : Trouble::graph_too_small;
    case 2:
      return Trouble::bad_id;
    case 3:
      return Trouble::bad_slot;
    case 4:
      return Trouble::slot_twice;
    default:
      return Trouble::none;
  }
}

std::vector<Slot> draw_slots(std::mt19937_64& random, std::int64_t count) {
  std::vector<Slot> all(Scenario::kSlots);
  std::iota(all.begin(), all.end(), Slot(0));
  std::ranges::shuffle(all, random);
  all.resize(static_cast<std::size_t>(count));
  return all;
}

// Where the token is that a slot's row in this step is of; the end if none is.
std::vector<Slot>::const_iterator wanted_token(const ScenarioStep& step, Slot slot) {
  const auto wanted = [&](const Slot& s) {
    return s == slot && step.wants(&s - step.slots.data());
  };
  return std::ranges::find_if(step.slots, wanted);
}

ScenarioStep draw_step(std::mt19937_64& random, Step number, RankLayout layout) {
  ScenarioStep step{.step = number, .trouble = draw_trouble(random, layout)};
  step.graph = step.trouble == Trouble::graph_too_small || random() % 2 == 0;
  const std::int64_t most = step.graph ? Scenario::kGraphTokens : Scenario::kMaxTokens;
  for (int rank = 0; rank < Scenario::kRanks; ++rank) {
    step.dp_tokens.push_back(static_cast<std::int64_t>(random() % (most + 1)));
  }
  std::int64_t& mine = step.dp_tokens[Scenario::kRank];
  if (step.trouble == Trouble::graph_too_small) mine = Scenario::kGraphTokens + 1 + mine % 8;
  if (step.trouble != Trouble::none) mine = std::max<std::int64_t>(mine, 2);
  step.num_tokens = mine;
  step.padded_tokens = step.graph ? Scenario::kGraphTokens : std::ranges::max(step.dp_tokens);
  step.slots = draw_slots(random, mine);
  if (step.trouble == Trouble::bad_slot) {
    step.slots[random() % step.slots.size()] =
        random() % 2 == 0 ? Slot(-1) : Slot(Scenario::kSlots);
  }
  if (step.trouble == Trouble::slot_twice) step.slots.front() = step.slots.back();
  return step;
}

}  // namespace

bool ScenarioStep::wants(std::int64_t token) const {
  return !wanted || std::ranges::any_of(*wanted, [token](TokenRange range) {
    return range.start <= token && token < range.end;
  });
}

bool ScenarioStep::fails() const {
  if (!wants_any()) return false;
  switch (trouble) {
    case Trouble::none:
      return false;
    case Trouble::bad_slot:
      return std::ranges::any_of(slots, [this](const Slot& slot) {
        return (slot < 0 || slot >= Slot(Scenario::kSlots)) && wants(&slot - slots.data());
      });
    case Trouble::slot_twice:
      return wants(0) && wants(num_tokens - 1);
    default:
      return true;
  }
}

bool ScenarioStep::loses_slots() const {
  return fails() && (trouble == Trouble::bad_slot || trouble == Trouble::slot_twice);
}

std::optional<std::vector<TokenRange>> draw_wanted(std::mt19937_64& random, std::int64_t tokens) {
  if (random() % 6 == 0) return std::nullopt;
  std::vector<TokenRange> ranges;
  if (random() % 6 == 0) return ranges;
  for (std::int64_t token = 0; token < tokens;) {
    const auto run = 1 + static_cast<std::int64_t>(random() % 5);
    const std::int64_t end = std::min(token + run, tokens);
    if (random() % 2 == 0) ranges.push_back({token, end});
    token = end;
  }
  return ranges;
}

Scenario::Scenario(std::uint64_t seed, Router model, RankLayout rows, bool opt_in)
    : router(std::move(model)), layout(rows) {
  std::mt19937_64 random(seed);
  Step number = 0;
  for (int i = 0; i < 40; ++i) {
    number += 1 + static_cast<std::int64_t>(random() % 2);
    steps.push_back(draw_step(random, number, layout));
    if (opt_in) steps.back().wanted = draw_wanted(random, steps.back().num_tokens);
  }
  steps.back() = {.step = number, .dp_tokens = {2, 3, 4}};  // ends well
  steps.back().num_tokens = steps.back().padded_tokens = 3;
  steps.back().slots = {5, 1, 7};
  steps.back().padded_tokens = 4;
}

Scenario::Scenario(Router model, std::vector<ScenarioStep> own_steps)
    : router(std::move(model)), layout(RankLayout::local), steps(std::move(own_steps)) {}

std::vector<ScenarioStep> plain_steps(int count) {
  std::vector<ScenarioStep> steps;
  for (int i = 0; i < count; ++i) {
    ScenarioStep step{.step = static_cast<Step>(i + 1), .num_tokens = 8, .padded_tokens = 8};
    step.dp_tokens = {0, 8, 0};
    for (int slot = 8 * i + 7; slot >= 8 * i; --slot) step.slots.emplace_back(slot);
    steps.push_back(step);
  }
  return steps;
}

std::int64_t Scenario::rows(const ScenarioStep& step) const {
  switch (layout) {
    case RankLayout::local:
      return step.graph ? kGraphTokens : step.num_tokens;
    case RankLayout::concatenated:
      return step.graph
                 ? kRanks * kGraphTokens
                 : std::accumulate(step.dp_tokens.begin(), step.dp_tokens.end(), std::int64_t{0});
    case RankLayout::padded:
      return kRanks * step.padded_tokens;
  }
  return 0;
}

std::int64_t Scenario::first_row(const ScenarioStep& step) const {
  switch (layout) {
    case RankLayout::local:
      return 0;
    case RankLayout::concatenated:
      return std::accumulate(step.dp_tokens.begin(), step.dp_tokens.begin() + kRank,
                             std::int64_t{0});
    case RankLayout::padded:
      return kRank * step.padded_tokens;
  }
  return 0;
}

std::vector<TokenRange> Scenario::real_rows(const ScenarioStep& step) const {
  if (layout == RankLayout::local) return {{0, step.num_tokens}};
  std::vector<TokenRange> ranges;
  std::int64_t first = 0;
  for (const std::int64_t tokens : step.dp_tokens) {
    ranges.push_back({first, first + tokens});
    first += layout == RankLayout::padded ? step.padded_tokens : tokens;
  }
  return ranges;
}

bool Scenario::written_after(Slot slot, Step step) const {
  return std::ranges::any_of(steps, [&](const ScenarioStep& later) {
    return later.step > step && wanted_token(later, slot) != later.slots.end();
  });
}

// Those between two such steps, with no other that was wanted in between, count as such.
Step Scenario::last_lost_in(StepWindow window) const {
  Step lost = 0;
  Step before = 0;  // the last lost step, if no other has come since
  for (const ScenarioStep& step : steps) {
    if (!step.wants_any()) continue;
    const Step first = before == 0 ? step.step : before;
    before = step.loses_slots() ? step.step : Step();
    if (before != 0 && first <= window.last) lost = std::min(window.last, step.step);
  }
  return lost >= window.first ? lost : Step();
}

Scenario::Row Scenario::expected(Slot slot, StepWindow window, Step last) const {
  const Step lost = last_lost_in(window);
  window.first = std::max(window.first, lost);
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    const auto found = wanted_token(*step, slot);
    if (step->step > last || found == step->slots.end()) continue;
    const std::int64_t row = first_row(*step) + (found - step->slots.begin());
    if (step->fails() || router.misses_route(step->step, row)) return {};
    const RowState state = row_state(step->step, window);
    if (state == RowState::stale && lost != 0) return {};
    if (state != RowState::present) return {state, {}};
    return {state, router.row(step->step, row)};
  }
  return {};
}

}  // namespace moetap::test
