// Layer schedules that nobody reads: a model of which they are ignored would have the wrong rows.
#include <moetap/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string>

#include "lib/internal/json_text.h"
#include "lib/shape/config_layers.h"

namespace moetap::detail {
namespace {

using Json = nlohmann::json;

// What moe_layers_of() reads.
constexpr std::string_view kRead[] = {
    "decoder_sparse_step",
    "dense_mlp_idx",
    "expert_layer_offset",
    "expert_layer_period",
    "first_k_dense_replace",
    "first_last_k_dense_replace",
    "hybrid_override_pattern",
    "interleave_moe_layer_step",
    "is_moe_layer",
    "layer_types",
    "layers_block_type",
    "mlp_layer_types",
    "mlp_only_layers",
    "moe_every_n_layer",
    "moe_every_n_layers",
    "moe_layer_end_index",
    "moe_layer_freq",
    "moe_layer_frequency",
    "moe_layer_interval",
    "moe_layer_num_skipped",
    "moe_layer_offset",
    "moe_layer_start_index",
    "moe_layers",
    "moe_layers_enum",
    "n_dense_first_layers",
    "num_dense_layers",
    "route_every_n",
};
// What looks like a schedule, but says nothing of which layers have a router.
constexpr std::string_view kNoSchedules[] = {
    "model_type",          "moe_aux_loss_freq",         "moe_layer_feed_fake_token",
    "moe_layer_recompute", "moe_token_dispatcher_type", "moe_router_load_balancing_type",
    "zero_expert_type"};
// Parts of names that are of no layers: a type of numbers, a normalization.
constexpr std::string_view kNoWords[] = {"dtype", "layernorm", "layer_norm"};
constexpr std::string_view kMlps[] = {"moe", "dense", "mlp", "expert"};
constexpr std::string_view kWhich[] = {"layer", "idx",  "freq",     "type",  "every",
                                       "skip",  "step", "interval", "period"};

template <std::size_t N>
bool has_one_of(std::string_view text, const std::string_view (&words)[N]) {
  return std::ranges::any_of(words, [&](auto word) { return text.find(word) != text.npos; });
}

template <std::size_t N>
bool is_one_of(std::string_view text, const std::string_view (&words)[N]) {
  return std::ranges::find(words, text) != std::end(words);
}

std::string words_of(std::string name) {
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const std::string_view word : kNoWords) {
    for (auto at = name.find(word); at != name.npos; at = name.find(word)) {
      name.erase(at, word.size());
    }
  }
  return name;
}

// A draft model's layers.
bool is_of_drafts(std::string_view key) { return key.starts_with("mtp"); }

// Words or letters, one a layer, of which some mean a router, under a name that is not read.
bool is_list_of_layers(const Json& value, int num_layers) {
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    return text.size() == static_cast<std::size_t>(num_layers) && text.find('E') != text.npos &&
           text.find_first_not_of("ME*-") == text.npos;
  }
  return value.is_array() && value.size() == static_cast<std::size_t>(num_layers) &&
         std::ranges::any_of(value, [](const Json& word) {
           if (!word.is_string()) return false;
           const auto& text = word.get_ref<const std::string&>();
           return text == "dense" || text == "sparse" || text == "mlp" ||
                  text.find("moe") != text.npos || text.find("expert") != text.npos;
         });
}

[[noreturn]] void refuse(const std::string& name, const Json& value, std::string_view why) {
  throw ArgumentError(
      fmt::format("\"{}\" is {}, {}: name the MoE layers with ModelShape's constructor", name,
                  shown(value), why));
}

constexpr std::string_view kUnknown =
    "which looks like a schedule of the layers that have experts and is not understood";

// `read`: by ConfigValues::find().
void check(const Json& object, const std::string& path, bool read, int num_layers) {
  constexpr std::string_view kAbout[] = {"moe", "dense", "mlp",   "expert",
                                         "ffn", "route", "layer", "block"};
  for (const auto& [key, value] : object.items()) {
    if (value.is_null() || is_of_drafts(key) || is_one_of(key, kNoSchedules)) continue;
    const std::string name = path + key;
    if (is_one_of(key, kRead)) {
      if (read) continue;
      refuse(name, value, "which is not read there");
    }
    const std::string words = words_of(name);
    if (has_one_of(words, kMlps) && has_one_of(words, kWhich)) refuse(name, value, kUnknown);
    if (is_list_of_layers(value, num_layers)) refuse(name, value, kUnknown);
    if (!value.is_object() || !has_one_of(words, kAbout)) continue;
    check(value, name + ".", path.empty() && is_one_of(key, ConfigValues::kNested), num_layers);
  }
}

}  // namespace

void refuse_unknown_schedules(const ConfigValues& config, std::span<const Json* const> around) {
  check(config.model(), "", true, config.num_layers());
  for (const Json* object : around) {
    for (const auto& [key, value] : object->items()) {
      if (value.is_null() || is_of_drafts(key) || is_one_of(key, kNoSchedules)) continue;
      const std::string words = words_of(key);
      const bool schedule =
          is_one_of(key, kRead) || (has_one_of(words, kMlps) && has_one_of(words, kWhich));
      if (!schedule) continue;
      const auto inside = config.model().find(key);
      if (inside != config.model().end() && *inside == value) continue;
      refuse(key, value, "beside the language model, which does not say the same");
    }
  }
}

}  // namespace moetap::detail
