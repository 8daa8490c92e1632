// Knows every row by identity: which one lies in each slot of each stage's buffer, and which one
// belongs to each position of a request. Shares no code with what it checks.
#pragma once

#include <moetap/routes.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "test/simulation/history.h"

namespace moetap::simulation {

struct Row {
  Step step;
  std::uint32_t number;
  Step computed;  // in this step, before it was put elsewhere
};
using RowRef = std::shared_ptr<const Row>;  // null: no row
using RowRefs = std::vector<RowRef>;
using SlotRows = std::vector<std::pair<Slot, RowRef>>;

inline RowRef& at(RowRefs& rows, std::int64_t i) { return rows[static_cast<std::size_t>(i)]; }
inline const RowRef& at(const RowRefs& rows, std::int64_t i) {
  return rows[static_cast<std::size_t>(i)];
}
inline RowRef& at(RowRefs& rows, Slot slot) { return at(rows, slot.value()); }
inline const RowRef& at(const RowRefs& rows, Slot slot) { return at(rows, slot.value()); }

// The router: a pure function of a row's number.
struct Router {
  int layers, top_k, num_experts;
  bool misses_routes = false;  // in every tenth row one

  static std::uint64_t mix(std::uint64_t x) {  // https://prng.di.unimi.it/splitmix64.c
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  }
  // The layer whose first route the row misses, or -1.
  int missing_layer(std::uint32_t number) const {
    const std::uint64_t drawn = mix(mix(number));
    return misses_routes && drawn % 10 == 0 ? static_cast<int>(drawn / 10 % layers) : -1;
  }
  std::int64_t pick(std::uint32_t number, int layer, int k) const {
    if (k == 0 && layer == missing_layer(number)) return -1;
    // Distinct: no stride has a factor in common with a number of experts that is drawn.
    constexpr std::uint64_t kStrides[] = {1, 7, 11, 13};
    const std::uint64_t drawn = mix(std::uint64_t{number} * layers + layer);
    return static_cast<std::int64_t>((drawn / 4 % num_experts + kStrides[drawn % 4] * k) %
                                     num_experts);
  }
  std::vector<std::byte> row(std::uint32_t number) const {
    const std::size_t width = num_experts <= 256 ? 1 : 2;
    std::vector<std::byte> bytes(width * layers * top_k);
    for (int i = 0; i < layers * top_k; ++i) {
      const std::int64_t id = pick(number, i / top_k, i % top_k);
      std::memcpy(bytes.data() + i * width, &id, width);  // little-endian, as all we run on
    }
    return bytes;
  }
};

class Oracle {
 public:
  // Rows are numbered from `first_number` on.
  Oracle(Router router_of_model, std::int64_t num_slots, int stages, std::uint32_t first_number = 0)
      : router(router_of_model),
        belongs(static_cast<std::size_t>(num_slots)),
        stages_(static_cast<std::size_t>(stages)),
        numbers_(first_number) {
    for (Stage& stage : stages_) stage.buffer.resize(belongs.size());
  }

  RowRef make(Step step) { return std::make_shared<Row>(Row{step, ++numbers_, step}); }
  RowRef move(const RowRef& row, Step step) {
    return std::make_shared<Row>(Row{step, row->number, row->computed});
  }

  // A stage's worker published the step: these slots get these rows once the reader took it in.
  void publish(int stage, Step step, SlotRows rows, bool failed) {
    stages_[stage].published.push_back({step, std::move(rows), failed});
  }
  // Its step failed, and not all the slots that it wrote are known. Between two such steps with
  // none that it published, all are taken for lost.
  void lose(int stage, Step step, SlotRows rows) {
    stages_[stage].published.push_back({step, std::move(rows), true, true});
  }
  // The stage's reader took in every step up to this one.
  void took_in(int stage, Step last) {
    Stage& s = stages_[stage];
    while (s.next < s.published.size() && s.published[s.next].step <= last) {
      const Published& taken = s.published[s.next];
      for (const auto& [slot, row] : taken.rows) at(s.buffer, slot) = row;
      if (taken.lost) {
        const bool goes_on = s.next > 0 && s.published[s.next - 1].lost;
        if (!goes_on) s.lost.push_back({taken.step, taken.step});
        s.lost.back().second = taken.step;
      }
      s.taken_in = taken.step;
      ++s.next;
    }
  }
  // The reader took in what it needs to know the outcome of this one.
  void took_in_until(int stage, Step step) {
    const Stage& s = stages_[stage];
    while (s.taken_in < step && s.next < s.published.size()) {
      took_in(stage, s.published[s.next].step);
    }
  }
  // As far as it took steps in.
  bool lost(int stage, Step step) const { return stages_[stage].was_lost(step); }
  // The last step that every reader took in.
  Step taken_in() const {
    return std::ranges::min_element(stages_, {}, &Stage::taken_in)->taken_in;
  }
  // The last one that a stage's reader took in.
  Step taken_in(int stage) const { return stages_[stage].taken_in; }
  // Null if it was not published.
  const bool* failed(int stage, Step step) const {
    for (const Published& published : stages_[stage].published) {
      if (published.step == step) return &published.failed;
    }
    return nullptr;
  }

  // A stage's part of the row never came to be.
  void lose(const RowRef& row) { lost_.insert(row->number); }
  bool lost(const RowRef& row) const { return lost_.contains(row->number); }

  // Rows of later steps stay.
  void put(Slot slot, Step step, const RowRef& row) {
    for (Stage& stage : stages_) {
      RowRef& there = at(stage.buffer, slot);
      if (there == nullptr || there->step <= step) there = row;
    }
  }
  // The row of this step that lies there, whichever it is.
  RowRef found(Slot slot, Step step) const {
    const RowRef& row = at(stages_[0].buffer, slot);
    if (row == nullptr || row->step != step) return nullptr;
    const auto has_it = [&](const Stage& s) { return at(s.buffer, slot) == row; };
    return std::ranges::all_of(stages_, has_it) ? row : nullptr;
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

  void check(const Expected& expected, const std::vector<RowState>& states,
             const Routes& routes) const {
    require(routes.states().size() == states.size(), "{} rows where {} were expected",
            routes.states().size(), states.size());
    for (std::size_t i = 0; i < states.size(); ++i) {
      const std::int64_t position = routes.range().start + static_cast<std::int64_t>(i);
      require(routes.state(position) == states[i], "position {} is {} where it must be {}",
              position, row_state_name(routes.state(position)), row_state_name(states[i]));
      const auto bytes = routes.row(position);
      const auto right = states[i] == RowState::present
                             ? router.row(expected.rows[i]->number)
                             : std::vector<std::byte>(bytes.size(), std::byte{0xFF});
      require(std::ranges::equal(bytes, right), "position {} is {} and has other ids", position,
              row_state_name(states[i]));
    }
  }

  Router router;
  RowRefs belongs;  // by slot: what belongs there, written or not

 private:
  struct Published {
    Step step;
    SlotRows rows;
    bool failed;
    bool lost = false;  // its slots are not known
  };
  struct Stage {
    RowRefs buffer{};  // by slot: what was written there last
    std::vector<Published> published{};
    std::size_t next = 0;  // of them that is not taken in
    Step taken_in = 0;
    std::vector<std::pair<Step, Step>> lost{};  // taken in: first and last of each run

    bool was_lost(Step step) const {
      return std::ranges::any_of(
          lost, [=](const auto& run) { return run.first <= step && step <= run.second; });
    }
  };

  // That of the stage that knows the worst: missing, then clobbered, then stale.
  RowState state(const Expected& expected, std::size_t i) const {
    const RowRef& row = expected.rows[i];
    if (i >= expected.slots.size() || row == nullptr) return RowState::missing;
    if (row->step <= expected.flushed) return RowState::stale;
    bool stale = false;
    bool clobbered = false;
    for (const Stage& stage : stages_) {
      const RowRef& there = at(stage.buffer, expected.slots[i]);
      if (there == row) continue;
      if (there == nullptr) return RowState::missing;
      if (there->step < row->step && stage.was_lost(row->step)) return RowState::missing;
      require(there->step != row->step, "two rows that nothing tells apart");
      (there->step < row->step ? stale : clobbered) = true;
    }
    return clobbered ? RowState::clobbered : stale ? RowState::stale : RowState::present;
  }

  std::vector<Stage> stages_;
  std::set<std::uint32_t> lost_;
  std::uint32_t numbers_;
};

}  // namespace moetap::simulation
