// Finds layer schedules under unknown keys: if they were ignored, the model would get wrong rows.
#include <moetap/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lib/internal/json_text.h"
#include "lib/shape/config_layers.h"
#include "lib/shape/config_words.h"

namespace moetap::detail {
namespace {

using Json = nlohmann::json;

// The keys that moe_layers_of() reads.
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
    "leading_dense_block_count",
    "mlp_layer_types",
    "mlp_only_layers",
    "moe_every_n_layer",
    "moe_every_n_layers",
    "moe_layer_end_index",
    "moe_layer_freq",
    "moe_layer_frequency",
    "moe_layer_interval",
    "moe_layer_layout",
    "moe_layer_num_skipped",
    "moe_layer_offset",
    "moe_layer_start_index",
    "moe_layers",
    "moe_layers_enum",
    "n_dense_first_layers",
    "num_dense_layers",
    "per_layer_experts_blocks",
    "route_every_n",
};
// Keys that look like a schedule, but do not say which layers have a router.
constexpr std::string_view kNoSchedules[] = {"architectures",
                                             "hybrid_layer_pattern",  // kinds of attention (MiMo)
                                             "mlp_ratio",             // of sizes
                                             "model_type",
                                             "moe_aux_loss_freq",
                                             "moe_dense_experts_token_type_id",
                                             "moe_layer_feed_fake_token",
                                             "moe_layer_recompute",
                                             "moe_token_dispatcher_type",
                                             "prefix_dense_intermediate_size",  // Cohere
                                             "prefix_dense_sliding_window_pattern",
                                             "moe_router_load_balancing_type",
                                             "router_type",
                                             "zero_expert_type"};
// Parts of names that are not about layers: a number type, a normalization.
constexpr std::string_view kNoWords[] = {"dtype", "layernorm", "layer_norm"};
constexpr std::string_view kMlps[] = {"moe", "dense", "mlp", "expert"};
constexpr std::string_view kWhich[] = {
    "layer",    "idx",       "freq",      "type",    "every",     "skip",    "step",    "interval",
    "period",   "first",     "start",     "layout",  "num_dense", "n_dense", "pattern", "prefix",
    "suffix",   "last",      "until",     "indices", "_ids",      "_nth",    "stride",  "offset",
    "replace",  "alternat",  "interleav", "block",   "mask",      "ratio",   "modulo",  "leading",
    "schedule", "placement", "location",  "position"};
// The same as whole words, since they are also parts of others ("model").
constexpr std::string_view kWholeWords[] = {"at", "map", "mode"};
// Parts of names of routers and MLPs that are also about other things: activations, sizes, losses.
// With these, fewer words say which layers are meant.
constexpr std::string_view kRouters[] = {"rout",   "gate", "gating",      "spars",
                                         "switch", "ffn",  "feed_forward"};
constexpr std::string_view kWhichLayers[] = {
    "layer",  "idx",  "indices",  "_ids", "freq",    "every", "period",   "prefix",   "suffix",
    "layout", "_nth", "interval", "step", "pattern", "mask",  "schedule", "placement"};
// Names of layers that do not say what is chosen, but that layers are.
constexpr std::string_view kLayerNames[] = {"layer", "block"};
constexpr std::string_view kChoices[] = {"pattern", "mask", "schedule", "placement"};
// Parts of names of layer lists that do not contain the word "layer".
constexpr std::string_view kListed[] = {"moe", "dense", "mlp",  "expert",
                                        "ffn", "spars", "rout", "switch"};
// Sparse attention has such lists too (MiniMax M3), and gates.
constexpr std::string_view kAttentionParts[] = {"attn", "attention", "index",
                                                "rope", "window",    "gated_"};
// Parts of strings that say that layers differ, or that all are of one of these kinds.
constexpr std::string_view kKindsOfLayers[] = {"layer",  "every", "alternat", "interleav",
                                               "hybrid", "mixed", "dense",    "spars",
                                               "first",  "last",  "even",     "odd"};

void erase_all(std::string& words, std::string_view word) {
  for (auto at = words.find(word); at != words.npos; at = words.find(word)) {
    words.erase(at, word.size());
  }
}

bool has_whole_word(std::string_view words, std::span<const std::string_view> some) {
  constexpr std::string_view kBetween = "._";
  for (std::size_t end = 0; !words.empty(); words.remove_prefix(std::min(end + 1, words.size()))) {
    end = std::min(words.find_first_of(kBetween), words.size());
    if (is_one_of(words.substr(0, end), some)) return true;
  }
  return false;
}

bool looks_like_schedule(const std::string& words) {
  if (has_one_of(words, kMlps) && (has_one_of(words, kWhich) || has_whole_word(words, kWholeWords)))
    return true;
  if (has_one_of(words, kAttentionParts)) return false;
  return (has_one_of(words, kRouters) && has_one_of(words, kWhichLayers)) ||
         (has_one_of(words, kLayerNames) && has_one_of(words, kChoices));
}

// A pattern has a letter for each layer, and fewer kinds than layers.
bool is_pattern(std::string text, int num_layers) {
  if (text.size() != static_cast<std::size_t>(num_layers)) return false;
  std::ranges::sort(text);
  return std::ranges::adjacent_find(text) != text.end();
}

// One kind for all layers: a word under a key that ends in "type" and has no other word for which
// layers ("mlp_type": "swiglu").
bool names_a_kind(std::string words, const Json& value, int num_layers) {
  if (!value.is_string() || !words.ends_with("type")) return false;
  erase_all(words, "type");
  const std::string text = lower(value.get<std::string>());
  return !looks_like_schedule(words) && !is_pattern(text, num_layers) &&
         text.find_first_not_of("abcdefghijklmnopqrstuvwxyz_-") == text.npos &&
         !has_one_of(text, kKindsOfLayers);
}

// The names of modules ("model.layers.0.mlp", "*experts") are no names of facts.
bool is_module(std::string_view key) {
  return key.find_first_of("*/") != key.npos || key.starts_with("model.") ||
         key.find("layers.") != key.npos;
}

// `name` of a key in the language model, with those of the objects that it is in.
bool looks_like_schedule(const std::string& name, std::string_view key, const Json& value,
                         int num_layers) {
  if (is_module(key)) return false;
  std::string words = lower(name);
  for (const std::string_view word : kNoWords) erase_all(words, word);
  return looks_like_schedule(words) && !names_a_kind(words, value, num_layers);
}

// A list of words, one of which means a router, or could mean one if there is a word per layer.
bool is_list_of_words(const Json& list, int num_layers) {
  const bool of_each_layer = list.size() == static_cast<std::size_t>(num_layers);
  return std::ranges::all_of(list, &Json::is_string) &&
         std::ranges::any_of(list, [&](const Json& word) {
           const std::string text = lower(word.get<std::string>());
           if (text == "moe" || text == "experts") return true;
           return of_each_layer &&
                  (text == "dense" || text == "sparse" || text == "mlp" || text == "e" ||
                   text.find("moe") != text.npos || text.find("expert") != text.npos);
         });
}

// Ascending layer ids, or flags for each layer that are not all equal.
bool is_list_of_numbers(const Json& list, int num_layers) {
  const auto is_flag = [](const Json& flag) { return flag.is_boolean() || flag == 0 || flag == 1; };
  const auto differs = [&](const Json& flag) { return flag != list.front(); };
  if (list.size() == static_cast<std::size_t>(num_layers) && std::ranges::all_of(list, is_flag)) {
    return std::ranges::any_of(list, differs);
  }
  const auto is_layer = [&](const Json& id) {
    return is_integer(id) && id >= 0 && id < num_layers;
  };
  return !list.empty() && std::ranges::all_of(list, is_layer) &&
         std::ranges::is_sorted(list, std::less_equal<>());
}

// Under a name that is not read.
bool is_list_of_layers(const std::string& name, const Json& value, int num_layers) {
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    return text.size() == static_cast<std::size_t>(num_layers) && text.find('E') != text.npos &&
           text.find_first_not_of("ME*-") == text.npos;
  }
  if (!value.is_array()) return false;
  if (is_list_of_words(value, num_layers)) return true;
  const std::string words = lower(name);
  return has_one_of(words, kListed) && !has_one_of(words, kAttentionParts) &&
         is_list_of_numbers(value, num_layers);
}

[[noreturn]] void refuse(const std::string& name, const Json& value, std::string_view why) {
  throw ArgumentError(
      fmt::format("\"{}\" is {}, {}: name the MoE layers with ModelShape's constructor", name,
                  shown(value), why));
}

constexpr std::string_view kUnknown =
    "which looks like a schedule of the layers that have experts and is not understood";

class Schedules {
 public:
  explicit Schedules(const ConfigValues& config)
      : config_(config), num_layers_(config.num_layers()) {}

  // `path` starts at the outermost object; `inside` at the language model, if `object` is a part of
  // it.
  void check(const Json& object, const std::string& path,
             const std::optional<std::string>& inside) const {
    for (const auto& [key, value] : object.items()) {
      if (value.is_null() || is_of_drafts(key) || is_one_of(key, kNoSchedules) ||
          is_one_of(key, switch_names())) {
        continue;
      }
      const std::string name = path + key;
      if (&value == &config_.model()) {
        check(value, name + ".", "");
        continue;
      }
      if (is_one_of(key, kRead)) {
        if (!is_read(object, inside)) refuse_unless_said(name, key, value, inside.has_value());
        continue;
      }
      const std::string words = inside.value_or("") + key;
      if (looks_like_schedule(words, key, value, num_layers_) ||
          is_list_of_layers(words, value, num_layers_)) {
        refuse(name, value, kUnknown);
      }
      if (!value.is_object() || is_of_another_model(key)) continue;
      check(value, name + ".", inside ? std::optional(*inside + key + ".") : std::nullopt);
    }
  }

 private:
  // By ConfigValues::find().
  bool is_read(const Json& object, const std::optional<std::string>& inside) const {
    return &object == &config_.model() ||
           (inside && std::ranges::any_of(ConfigValues::kNested, [&](std::string_view nested) {
              return *inside == fmt::format("{}.", nested);
            }));
  }

  // It may repeat what the model says, and words for attention say nothing.
  void refuse_unless_said(const std::string& name, const std::string& key, const Json& value,
                          bool inside) const {
    const bool is_of_words = key == "layer_types" || key == "layers_block_type";
    if (is_of_words && is_list_of_attention(value)) return;
    const Json* said = config_.find(key);
    if (said && *said == value) return;
    refuse(name, value,
           inside ? "which is not read there"
                  : "beside the language model, which does not say the same");
  }

  const ConfigValues& config_;
  int num_layers_;
};

}  // namespace

void refuse_unknown_schedules(const ConfigValues& config, const Json& root) {
  Schedules(config).check(root, "",
                          &root == &config.model() ? std::optional<std::string>("") : std::nullopt);
}

}  // namespace moetap::detail
