#include "lib/shape/config_values.h"

#include <moetap/error.h>
#include <moetap/shape.h>

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "lib/internal/json_text.h"
#include "lib/internal/text.h"
#include "lib/shape/config_words.h"

namespace moetap::detail {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kLayers[] = {"num_hidden_layers", "num_layers", "n_layers", "n_layer"};
constexpr std::string_view kExperts[] = {
    "num_experts",        "n_routed_experts",        "num_local_experts",       "moe_num_experts",
    "num_routed_experts", "moe_num_primary_experts", "per_layer_experts_blocks"};
constexpr std::string_view kTopK[] = {"num_experts_per_tok",
                                      "num_experts_per_token",
                                      "top_k_experts",
                                      "moe_top_k",
                                      "moe_topk",
                                      "num_selected_experts",
                                      "experts_per_token",
                                      "moe_k",
                                      "experts_top_k",
                                      "moe_num_active_primary_experts"};
// Switches that turn a model's experts off.
constexpr std::string_view kSwitches[] = {"enable_moe_block", "is_moe", "use_moe", "enable_moe",
                                          "moe_enabled"};
// Lists and strings with one entry per layer, for models that give no number of layers.
constexpr std::string_view kPerLayer[] = {"hybrid_override_pattern", "layers_block_type",
                                          "mlp_layer_types"};

const Json* child(const Json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(std::string(key));
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

}  // namespace

std::span<const std::string_view> expert_names() { return kExperts; }
std::span<const std::string_view> switch_names() { return kSwitches; }
std::span<const std::string_view> top_k_names() { return kTopK; }

bool flag(std::string_view key, const Json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value == 0 || value == 1) return value == 1;
  throw ArgumentError(
      fmt::format("\"{}\" has {}; it must be false or true, or 0 or 1", key, shown(value)));
}

const Json* ConfigValues::find(std::string_view key) const {
  const Json* result = child(model_, key);
  for (const std::string_view nested : kNested) {
    const Json* object = child(model_, nested);
    const Json* value = object ? child(*object, key) : nullptr;
    if (result && value && *result != *value) {
      throw ArgumentError(
          fmt::format("\"{}\" is {}, but \"{}.{}\" is {}: correct the one that is wrong", key,
                      shown(*result), nested, key, shown(*value)));
    }
    if (!result) result = value;
  }
  return result;
}

std::optional<std::int64_t> ConfigValues::number(std::string_view key, std::int64_t least,
                                                 std::int64_t most) const {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  const bool per_layer = value->is_array() && (is_one_of(key, kTopK) || is_one_of(key, kExperts));
  return integer(key, per_layer ? same_in_each_layer(key, *value) : *value, least, most);
}

std::optional<std::int64_t> ConfigValues::number(Names keys, std::int64_t least,
                                                 std::int64_t most) const {
  std::optional<std::int64_t> result;
  std::string_view source;
  for (const std::string_view key : keys) {
    const auto value = number(key, least, most);
    if (!value) continue;
    if (result && *result != *value) {
      throw ArgumentError(
          fmt::format("\"{}\" is {}, but \"{}\" is {}: correct the one that is wrong", source,
                      *result, key, *value));
    }
    result = value;
    source = key;
  }
  return result;
}

bool ConfigValues::experts_are_off() const {
  return std::ranges::any_of(kSwitches, [&](std::string_view key) {
    const Json* enabled = find(key);
    return enabled && !flag(key, *enabled);
  });
}

std::int64_t ConfigValues::num_experts() const {
  refuse_layers_that_differ();
  if (experts_are_off()) return 0;
  const Json* secondary = find("moe_enable_secondary_experts");  // SmallThinker
  if (secondary && flag("moe_enable_secondary_experts", *secondary)) {
    throw ArgumentError(
        fmt::format("\"moe_enable_secondary_experts\" is {}; rows of experts that have experts of "
                    "their own cannot be expressed: name what is to be captured with ModelShape's "
                    "constructor",
                    shown(*secondary)));
  }
  const std::int64_t routed = number(kExperts, 0, ModelShape::kMaxExperts).value_or(0);
  // Identity experts (LongCat) are picked by the router too, with ids after the others'.
  const std::int64_t all =
      routed == 0 ? 0 : routed + number("zero_expert_num", 0, ModelShape::kMaxExperts).value_or(0);
  return all == 1 ? 0 : all;  // one expert needs no router: a plain MLP (HunYuan)
}

int ConfigValues::top_k() const {
  if (const auto top_k = number(kTopK, 1)) return static_cast<int>(*top_k);
  throw ArgumentError(fmt::format(
      "the number of experts a token is missing: none of {} is there. If it has another "
      "name, use ModelShape's constructor",
      join(kTopK)));
}

int ConfigValues::num_layers() const {
  // At most as many as a shape can have. This also keeps a nonsensical file from taking much
  // memory.
  constexpr std::int64_t kMost = ModelShape::kMaxLayers;
  if (const auto layers = number(kLayers, 1, kMost)) return static_cast<int>(*layers);
  for (const std::string_view key : kPerLayer) {
    const Json* value = find(key);
    if (!value || !(value->is_array() || value->is_string())) continue;
    const std::size_t size =
        value->is_array() ? value->size() : value->get_ref<const std::string&>().size();
    return static_cast<int>(integer(fmt::format("length of {}", key), size, 1, kMost));
  }
  throw ArgumentError(fmt::format(
      "the number of layers is missing: none of {} is there. If it has another name, use "
      "ModelShape's constructor",
      join(kLayers)));
}

void ConfigValues::require_same(std::string_view prefix, const ConfigValues& other,
                                std::string_view other_prefix) const {
  for (const std::string_view key : kSwitches) {
    const Json* enabled = other.find(key);
    if (!enabled || flag(key, *enabled)) continue;
    throw ArgumentError(
        fmt::format("\"{}{}\" is {}, but \"{}{}\" is above 1: correct the one that is wrong",
                    other_prefix, key, shown(*enabled), prefix, stated(kExperts)));
  }
  for (const Names keys : {Names(kLayers), Names(kExperts), Names(kTopK)}) {
    const std::string_view name = stated(keys);
    if (name.empty()) continue;
    const auto here = number(name, 0);
    for (const std::string_view key : keys) {
      const auto there = other.number(key, 0);
      if (!there || there == here) continue;
      throw ArgumentError(
          fmt::format("\"{}{}\" is {}, but \"{}{}\" is {}: correct the one that is wrong",
                      other_prefix, key, *there, prefix, name, *here));
    }
  }
}

// The first key that exists, or none.
std::string_view ConfigValues::stated(Names keys) const {
  const auto found = std::ranges::find_if(keys, [&](std::string_view key) { return find(key); });
  return found == keys.end() ? std::string_view() : *found;
}

// One number for all layers; a row cannot have different ones.
const Json& ConfigValues::same_in_each_layer(std::string_view key, const Json& list) const {
  const bool same = !list.empty() && std::ranges::all_of(list, [&](const Json& value) {
    return value == list.front();
  });
  if (!same || list.size() != static_cast<std::size_t>(num_layers())) {
    throw ArgumentError(fmt::format(
        "\"{}\" is {}; a list must have the same number for each of the {} layers: rows of layers "
        "that differ in top_k or experts cannot be expressed, name those that are alike with "
        "ModelShape's constructor",
        key, shown(list), num_layers()));
  }
  return list.front();
}

// A description for each layer, which may give its own number of experts.
void ConfigValues::refuse_layers_that_differ() const {
  if (!model_.is_object()) return;
  const auto layers = number(kLayers, 1);
  for (const auto& [key, value] : model_.items()) {
    if (!value.is_array() || value.empty()) continue;
    const bool of_each_layer = layers && value.size() == static_cast<std::size_t>(*layers) &&
                               std::ranges::all_of(value, &Json::is_object);
    if (key != "block_configs" && !of_each_layer) continue;
    throw ArgumentError(
        fmt::format("\"{}\" describes layers one by one; models whose top_k or experts may differ "
                    "from layer to layer cannot be expressed: name the layers, top_k and experts "
                    "with ModelShape's constructor if they do not differ",
                    key));
  }
}

}  // namespace moetap::detail
