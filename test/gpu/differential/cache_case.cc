#include "test/gpu/differential/cache_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

namespace moetap::test {
namespace {

using simulation::Dice;

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
// Picks in a cache, so that two thousand cases take seconds.
constexpr std::int64_t kPicks = 4000;

std::int64_t between(Dice& dice, std::int64_t least, std::int64_t most) {
  return least + dice.draw(most - least);
}

template <class... Values>
std::int64_t one_of(Dice& dice, Values... values) {
  const std::int64_t all[] = {values...};
  return dice.any_of(all);
}

struct Size {
  std::int64_t layers, tokens, top_k;
};

Size draw_size(Dice& dice) {
  Size size{};
  const std::int64_t most[] = {4, 4, 4, 4, 4, 4, 40, 40, 384, 1024};
  size.layers = between(dice, 1, dice.any_of(most));
  size.tokens = dice.chance(40) ? one_of(dice, 1, 15, 16, 17, 63, 64, 65, 255, 256, 257, 600)
                                : between(dice, 1, dice.chance(70) ? 80 : 600);
  size.top_k = dice.chance(70) ? one_of(dice, 1, 2, 2, 3, 4, 6, 8, 8, 8, 9, 16, 22, 32, 64)
                               : between(dice, 1, 100);
  while (size.layers * size.tokens * size.top_k > kPicks) {
    std::int64_t* const dimensions[] = {&size.layers, &size.tokens, &size.top_k};
    std::int64_t& any = *dice.any_of(dimensions);
    if (any > 1) any -= std::max<std::int64_t>(1, any / 3);
  }
  return size;
}

ModelShape draw_shape(Dice& dice, const Size& size) {
  const std::int64_t experts = dice.chance(30)
                                   ? size.top_k + dice.draw(2)
                                   : one_of(dice, 8, 60, 64, 128, 128, 160, 255, 256, 257, 512,
                                            32'767, 32'768, 32'769, 65'535, 65'536);
  const auto shape =
      ModelShape::uniform(static_cast<int>(size.layers), static_cast<int>(size.top_k),
                          static_cast<int>(std::max({experts, size.top_k, std::int64_t{2}})));
  const auto weights = static_cast<WeightType>(dice.chance(50) ? 0 : between(dice, 1, 2));
  return shape.with_weights(weights).with_repeated_experts(dice.chance(15));
}

// Whether a layer's picks can get there so.
bool allowed(Way way, const CacheCase& c) {
  const bool local = !c.first_row_from_step && c.fixed_first_row == 0;
  switch (way) {
    case Way::capture:
      return true;
    case Way::sink:
      return c.shape.num_experts() < 65'536;
    case Way::output:
      return local && c.shape.num_experts() <= 32'768 && c.shape.weight_type() == WeightType::none;
  }
  return false;
}

LayerCase draw_layer(Dice& dice, const CacheCase& c) {
  LayerCase layer;
  if (dice.chance(35)) layer.way = dice.chance(50) ? Way::sink : Way::output;
  if (!allowed(layer.way, c)) layer.way = Way::capture;
  const int top_k = c.shape.top_k();
  layer.offset = dice.chance(50) ? 0 : dice.draw(16);
  layer.stride = top_k;
  layer.weights = c.shape.weight_type();
  layer.weight_stride = top_k;
  if (layer.way != Way::capture) {
    if (layer.way == Way::sink) layer.declared = static_cast<int>(dice.draw(2));
    if (layer.weights == WeightType::bfloat16 && dice.chance(50))
      layer.weights = WeightType::float32;
    return layer;
  }
  do {
    layer.type = static_cast<IdType>(dice.draw(4));
  } while (!holds_ids(layer.type, c.shape.num_experts()));
  if (dice.chance(40)) layer.stride += one_of(dice, 1, 2, 5, 8 - top_k % 8);
  if (layer.weights == WeightType::none) return layer;
  if (layer.weights == WeightType::bfloat16 && dice.chance(50)) layer.weights = WeightType::float32;
  if (dice.chance(40)) layer.weight_stride += one_of(dice, 1, 3, 8 - top_k % 8);
  layer.weight_offset = dice.chance(50) ? 0 : dice.draw(16);
  layer.gathered = layer.weights == WeightType::float32 && dice.chance(30);
  return layer;
}

std::int64_t highest(IdType type) {
  switch (type) {
    case IdType::uint8:
      return 0xFF;
    case IdType::uint16:
      return 0xFFFF;
    case IdType::int16:
      return 0x7FFF;
    case IdType::int32:
      return std::numeric_limits<std::int32_t>::max();
    case IdType::int64:
      return kMost;
  }
  return 0;
}

std::int64_t lowest(IdType type) {
  return type == IdType::uint8 || type == IdType::uint16 ? 0 : -highest(type) - 1;
}

// An id that is no expert's, or nearly none's; the type holds it.
std::int64_t draw_wild(Dice& dice, IdType type, std::int64_t experts) {
  const std::int64_t valid = dice.draw(experts - 1);
  const std::int64_t id =
      one_of(dice, experts - 1, experts, experts, experts + 1, std::int64_t{-2}, std::int64_t{0},
             highest(type), lowest(type), 65'535 - experts % 2, 65'536 + valid, valid - 65'536,
             (std::int64_t{1} << 32) + valid, valid - (std::int64_t{1} << 32), experts + 256);
  return id >= lowest(type) && id <= highest(type) ? id : valid;
}

// Distinct experts for each token.
void draw_ids(Dice& dice, std::vector<std::int64_t>& ids, std::int64_t top_k,
              std::int64_t experts) {
  for (std::size_t first = 0; first < ids.size(); first += static_cast<std::size_t>(top_k)) {
    std::int64_t by = 1 + dice.draw(experts - 1);
    while (std::gcd(by, experts) != 1) ++by;
    std::int64_t id = dice.draw(experts - 1);
    for (std::int64_t k = 0; k < top_k; ++k, id = (id + by) % experts) {
      ids[first + static_cast<std::size_t>(k)] = id;
    }
  }
}

// What may be wrong with a step.
enum class Mood : std::uint8_t { clean, missing, faulty };

void draw_weights(Dice& dice, const LayerCase& layer, Mood mood, LayerStep& step) {
  if (layer.weights == WeightType::none) return;
  step.weights.resize(step.ids.size());
  for (std::uint32_t& bits : step.weights) {
    bits = static_cast<std::uint32_t>(dice.number());
    if (dice.chance(20)) bits = (bits & 0xFFFF'0000U) | 0x8000U;  // in the middle of two bfloat16
    if (dice.chance(5)) bits = 0x7F80'0000U | (bits & 0x8000'FFFFU);  // infinities and NaNs
    if (!layer.gathered && dice.chance(5)) bits = static_cast<std::uint32_t>(kNotGathered);
    if (layer.gathered && bits == static_cast<std::uint32_t>(kNotGathered)) bits = 1;
    if (layer.weights == WeightType::bfloat16) bits >>= 16;
  }
  if (layer.gathered && mood == Mood::faulty && !step.weights.empty() && dice.chance(40)) {
    dice.any_of(step.weights) = static_cast<std::uint32_t>(kNotGathered);
  }
}

void spoil(Dice& dice, const CacheCase& c, const LayerCase& layer, Mood mood, LayerStep& step) {
  if (step.ids.empty() || mood == Mood::clean) return;
  const bool is_signed = lowest(layer.type) < 0;
  for (std::int64_t n = dice.draw(4); n > 0 && is_signed; --n) dice.any_of(step.ids) = -1;
  if (mood == Mood::missing) {
    if (layer.way == Way::sink && dice.chance(30)) step.left_out = dice.draw(20);
    return;
  }
  for (std::int64_t n = dice.chance(20) ? 40 : dice.draw(3); n > 0; --n) {
    dice.any_of(step.ids) = draw_wild(dice, layer.type, c.shape.num_experts());
  }
  // A repeat: any two picks of a token, often the last ones.
  const std::int64_t top_k = c.shape.top_k();
  if (top_k >= 2 && dice.chance(50)) {
    const auto token = dice.draw(static_cast<std::int64_t>(step.ids.size()) / top_k - 1);
    const auto at = static_cast<std::size_t>(token * top_k);
    const auto k =
        static_cast<std::size_t>(dice.chance(50) ? top_k - 1 : between(dice, 1, top_k - 1));
    step.ids[at + k] =
        step.ids[at + static_cast<std::size_t>(dice.draw(static_cast<std::int64_t>(k) - 1))];
  }
  if (layer.way != Way::sink) return;
  if (dice.chance(15)) step.first_k = -1;
  if (dice.chance(15)) step.shared = layer.declared + 1;
  step.without_weights = dice.chance(20);
}

LayerStep draw_layer_step(Dice& dice, const CacheCase& c, const LayerCase& layer, Mood mood,
                          std::int64_t num_tokens) {
  LayerStep step;
  step.ids.resize(static_cast<std::size_t>(num_tokens * c.shape.top_k()));
  draw_ids(dice, step.ids, c.shape.top_k(), c.shape.num_experts());
  step.shared = static_cast<int>(dice.draw(layer.declared));
  step.written = num_tokens;
  if (mood != Mood::clean && dice.chance(40)) step.written = dice.draw(c.max_tokens);
  if (mood == Mood::clean && dice.chance(20)) step.written = c.max_tokens;
  spoil(dice, c, layer, mood, step);
  if (c.graph) {  // where the kernels' arguments stay
    step.first_k = 0;
    step.shared = layer.declared;
    step.left_out = -1;
    step.without_weights = false;
    step.written = c.max_tokens;
  }
  draw_weights(dice, layer, mood, step);
  return step;
}

StepCase draw_step(Dice& dice, const CacheCase& c, Mood mood) {
  StepCase step;
  const std::int64_t after = c.max_tokens;
  step.num_tokens = dice.chance(50) ? after : dice.draw(after);
  step.dp_row = dice.draw(c.max_rows - after);
  const std::int64_t needed = c.first_row(step) + step.num_tokens;
  step.rows = c.graph ? c.max_rows : std::min(c.max_rows, needed + dice.draw(70));
  if (mood == Mood::faulty && dice.chance(15)) {
    if (!c.graph) step.rows = dice.draw(needed);
    if (c.graph && c.first_row_from_step) step.dp_row = c.max_rows - step.num_tokens + 1;
  }
  for (const LayerCase& layer : c.layers) {
    step.layers.push_back(draw_layer_step(dice, c, layer, mood, step.num_tokens));
  }
  if (mood == Mood::faulty && !c.graph) {
    if (dice.chance(10)) dice.any_of(step.layers).launches = 0;
    if (dice.chance(10)) dice.any_of(step.layers).launches = 2;
  }
  for (std::int64_t i = 0; i < step.num_tokens; ++i)
    step.slots.push_back(dice.draw(c.num_slots - 1));
  if (mood == Mood::faulty && step.num_tokens > 0 && dice.chance(30)) {
    dice.any_of(step.slots) =
        one_of(dice, std::int64_t{-1}, c.num_slots, c.num_slots + 7, kMost, -kMost - 1);
  }
  if (dice.chance(40)) {
    step.wanted.emplace();
    const int percent = static_cast<int>(one_of(dice, 5, 50, 95));
    for (std::int64_t i = 0; i < step.num_tokens; ++i) {
      if (dice.chance(percent)) step.wanted->push_back(static_cast<std::uint32_t>(i));
    }
  }
  step.record_offset = 8 * dice.draw(dice.chance(50) ? 0 : 8);
  return step;
}

}  // namespace

CacheCase::CacheCase(std::uint64_t seed) {
  Dice dice(seed);
  const Size size = draw_size(dice);
  shape = draw_shape(dice, size);
  max_tokens = size.tokens;
  compare_all_picks = dice.chance(50);
  if (dice.chance(40)) {
    first_row_from_step = dice.chance(50);
    fixed_first_row = first_row_from_step ? 0 : between(dice, 1, 40);
  }
  max_rows = max_tokens + fixed_first_row + dice.draw(80);
  num_slots = between(dice, 1, 1000);
  graph = dice.chance(30);
  for (int i = 0; i < shape.num_layers(); ++i) layers.push_back(draw_layer(dice, *this));
  for (std::int64_t n = between(dice, 1, 3); n > 0; --n) {
    const std::int64_t mood = dice.draw(9);
    steps.push_back(
        draw_step(dice, *this, mood < 5 ? Mood::clean : (mood < 7 ? Mood::missing : Mood::faulty)));
  }
}

bool CacheCase::clears() const {
  return std::ranges::any_of(layers,
                             [](const LayerCase& layer) { return layer.way != Way::capture; });
}

std::string CacheCase::to_string() const {
  return fmt::format("{}, {} tokens, {} rows, from {} {}{}", shape.to_string(), max_tokens,
                     max_rows, first_row_from_step ? "the step's" : "row", fixed_first_row,
                     graph ? ", in a graph" : "");
}

}  // namespace moetap::test
