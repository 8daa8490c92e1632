#include "test/gpu/differential/cache_reference.h"

#include <algorithm>
#include <limits>

#include "test/gpu/differential/bfloat16.h"

namespace moetap::test {
namespace {

constexpr std::int64_t kBadSlot = std::numeric_limits<std::int64_t>::max();

bool is_signed(IdType type) { return type != IdType::uint8 && type != IdType::uint16; }

}  // namespace

std::size_t CacheReference::at(std::int64_t token, std::size_t layer, std::int64_t k) const {
  return (static_cast<std::size_t>(token) * case_.layers.size() + layer) *
             static_cast<std::size_t>(case_.shape.top_k()) +
         static_cast<std::size_t>(k);
}

int CacheReference::compared() const {
  if (case_.shape.repeats_experts()) return 0;
  const int top_k = case_.shape.top_k();
  return on_gpu_ || case_.compare_all_picks ? top_k : std::min(top_k, 2);
}

void CacheReference::find_repeat(std::size_t layer, std::int64_t token,
                                 const std::vector<std::int64_t>& ids,
                                 std::vector<Found>& found) const {
  const auto end = ids.begin() + compared();
  for (auto id = ids.begin(); id < end; ++id) {
    if (!valid(*id) || std::find(ids.begin(), id, *id) == id) continue;
    found.push_back({DeviceFault::repeated_id, static_cast<std::int64_t>(layer), token, *id});
    return;
  }
}

// Kernels of a stream run one after the other.
void CacheReference::close(const std::vector<Found>& found) {
  if (faults_.empty()) faults_ = found;
}

bool CacheReference::has_weights_for(const LayerCase& layer, const LayerStep& step) const {
  const WeightType wanted = case_.shape.weight_type();
  const WeightType given = step.without_weights ? WeightType::none : layer.weights;
  return given == wanted || (given == WeightType::float32 && wanted == WeightType::bfloat16);
}

std::int64_t CacheReference::weight(const LayerCase& layer, std::uint32_t bits) const {
  const bool narrows = layer.weights != case_.shape.weight_type();
  return narrows ? nearest_bfloat16(bits) : bits;
}

void CacheReference::begin(const StepCase& step, std::size_t layer, std::vector<Found>& found) {
  const auto index = static_cast<std::int64_t>(layer);
  if (captured_[layer] == number_) found.push_back({DeviceFault::layer_twice, index, 0, 0});
  captured_[layer] = number_;
  if (!has_weights_for(case_.layers[layer], step.layers[layer])) {
    found.push_back({DeviceFault::weights, index, 0, 0});
  }
  const std::int64_t needed = case_.first_row(step) + step.num_tokens;
  if (needed > step.rows) found.push_back({DeviceFault::rows, index, needed, step.rows});
}

void CacheReference::launch_capture(const StepCase& step, std::size_t layer,
                                    std::vector<Found>& found) {
  begin(step, layer, found);
  if (case_.first_row(step) + step.num_tokens > step.rows) return;
  const LayerCase& how = case_.layers[layer];
  const LayerStep& picks = step.layers[layer];
  const auto index = static_cast<std::int64_t>(layer);
  const int top_k = case_.shape.top_k();
  for (std::int64_t token = 0; token < step.num_tokens; ++token) {
    const auto first = picks.ids.begin() + token * top_k;
    const std::vector<std::int64_t> ids(first, first + top_k);
    bool absent = false;
    for (int k = 0; k < top_k; ++k) {
      const std::int64_t id = ids[static_cast<std::size_t>(k)];
      ids_[at(token, layer, k)] = valid(id) ? id : kAnything;
      if (id == -1 && is_signed(how.type)) {
        missing_[static_cast<std::size_t>(token)] = true;
      } else if (!valid(id)) {
        found.push_back({DeviceFault::expert_id, index, token, id});
      }
      if (picks.weights.empty()) continue;
      const std::uint32_t bits = picks.weights[static_cast<std::size_t>(token * top_k + k)];
      weights_[at(token, layer, k)] = weight(how, bits);
      absent |= how.gathered && bits == static_cast<std::uint32_t>(kNotGathered);
    }
    if (absent) found.push_back({DeviceFault::expert_id, index, token, kNotGathered});
    find_repeat(layer, token, ids, found);
  }
}

void CacheReference::launch_sink(const StepCase& step, std::size_t layer,
                                 std::vector<Found>& found) {
  begin(step, layer, found);
  const LayerCase& how = case_.layers[layer];
  const LayerStep& picks = step.layers[layer];
  const auto index = static_cast<std::int64_t>(layer);
  const int top_k = case_.shape.top_k();
  const std::int64_t put = std::min(step.num_tokens, step.rows - case_.first_row(step));
  for (std::int64_t token = 0; token < put; ++token) {
    if (picks.first_k < 0) found.push_back({DeviceFault::pick, index, token, picks.first_k});
    for (int k = how.declared; k < picks.shared; ++k) {
      found.push_back({DeviceFault::pick, index, token, top_k + k});
    }
    for (int k = 0; k < top_k; ++k) {
      if (case_.first_row(step) + token == picks.left_out && k == top_k - 1) continue;
      if (!has_weights_for(how, picks)) {
        found.push_back({DeviceFault::weights, index, token, 0});
        continue;
      }
      const auto i = static_cast<std::size_t>(token * top_k + k);
      const std::int64_t id = picks.ids[i];
      if (id == -1) {
        missing_[static_cast<std::size_t>(token)] = true;
      } else if (!valid(id)) {
        found.push_back({DeviceFault::expert_id, index, token, id});
      } else {
        ids_[at(token, layer, k)] = id;
        if (!picks.weights.empty()) weights_[at(token, layer, k)] = weight(how, picks.weights[i]);
      }
    }
  }
}

void CacheReference::write_output(const StepCase& step, std::size_t layer) {
  const LayerStep& picks = step.layers[layer];
  const int top_k = case_.shape.top_k();
  for (std::int64_t token = 0; token < std::min(picks.written, step.num_tokens); ++token) {
    for (int k = 0; k < top_k; ++k) {
      const auto i = static_cast<std::size_t>(token * top_k + k);
      ids_[at(token, layer, k)] = static_cast<std::int16_t>(picks.ids[i]);
    }
  }
}

void CacheReference::capture(const StepCase& step, std::size_t layer) {
  for (int launch = 0; launch < step.layers[layer].launches; ++launch) {
    std::vector<Found> found;
    switch (case_.layers[layer].way) {
      case Way::capture:
        launch_capture(step, layer, found);
        break;
      case Way::sink:
        launch_sink(step, layer, found);
        break;
      case Way::output:
        write_output(step, layer);
        break;
    }
    close(found);
  }
}

// What other kernels left in the cache. Nothing there yet is kAnything, which is no expert's id.
void CacheReference::check_layer(const StepCase& step, std::size_t layer,
                                 std::vector<Found>& found) {
  const int top_k = case_.shape.top_k();
  bool written = false;
  for (std::int64_t token = 0; token < step.num_tokens; ++token) {
    std::vector<std::int64_t> ids;
    for (int k = 0; k < top_k; ++k) {
      std::int64_t& id = ids_[at(token, layer, k)];
      ids.push_back(id);
      written |= id != -1;
      if (id == -1) {
        missing_[static_cast<std::size_t>(token)] = true;
      } else if (!valid(id)) {
        found.push_back({DeviceFault::expert_id, static_cast<std::int64_t>(layer), token, id});
        id = kAnything;
      }
    }
    find_repeat(layer, token, ids, found);
  }
  if (written && case_.layers[layer].way == Way::output) captured_[layer] = number_;
}

void CacheReference::check(const StepCase& step) {
  std::vector<Found> found;
  for (std::size_t layer = 0; layer < case_.layers.size(); ++layer) {
    if (case_.layers[layer].way != Way::capture) check_layer(step, layer, found);
  }
  close(found);
}

void CacheReference::take_slots(const StepCase& step, ExpectedStep& expected) {
  std::vector<Found> found;
  const std::size_t row_picks = case_.layers.size() * static_cast<std::size_t>(case_.shape.top_k());
  for (std::int64_t row = 0; row < step.num_rows(); ++row) {
    const auto r = static_cast<std::size_t>(row);
    const std::size_t token = step.wanted ? (*step.wanted)[r] : r;
    const std::int64_t slot = step.slots[token];
    const bool bad = slot < 0 || slot >= case_.num_slots;
    if (bad) found.push_back({DeviceFault::slot, 0, static_cast<std::int64_t>(token), slot});
    expected.slots.push_back(bad ? kBadSlot : (missing_[token] ? -1 - slot : slot));
    const auto take = [&](const std::vector<std::int64_t>& from, std::vector<std::int64_t>& to) {
      const auto begin = from.begin() + static_cast<std::ptrdiff_t>(token * row_picks);
      to.insert(to.end(), begin, begin + static_cast<std::ptrdiff_t>(row_picks));
    };
    take(ids_, expected.ids);
    if (!weights_.empty()) take(weights_, expected.weights);
  }
  close(found);
}

ExpectedStep CacheReference::run(const StepCase& step) {
  ++number_;
  const std::size_t picks = static_cast<std::size_t>(step.num_tokens) * case_.layers.size() *
                            static_cast<std::size_t>(case_.shape.top_k());
  faults_.clear();
  missing_.assign(static_cast<std::size_t>(step.num_tokens), false);
  ids_.assign(picks, kAnything);
  weights_.assign(case_.shape.weight_type() == WeightType::none ? 0 : picks, kAnything);
  for (std::size_t layer = 0; layer < case_.layers.size(); ++layer) capture(step, layer);
  check(step);
  ExpectedStep expected;
  take_slots(step, expected);
  expected.faults = faults_;
  expected.captured = captured_;
  return expected;
}

}  // namespace moetap::test
