// Finds layer schedules under unknown keys: if they were ignored, the model would get wrong rows.
#include <moetap/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <functional>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/internal/json_text.h"
#include "lib/shape/config_layers.h"
#include "lib/shape/config_words.h"

namespace moetap::detail {
namespace {

using Json = nlohmann::json;

// The keys that are read, but for expert_names() and top_k_names().
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
    "moe_enable_secondary_experts",
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
    "route_every_n",
    "zero_expert_num",
};
// Keys that look like a schedule, but do not say which layers have a router.
constexpr std::string_view kNoSchedules[] = {"architectures",
                                             "hybrid_layer_pattern",  // kinds of attention (MiMo)
                                             "label2id"};
// These neither, if one value is for all layers.
constexpr std::string_view kOfAllLayers[] = {"mlp_ratio",  // of sizes
                                             "moe_aux_loss_freq",
                                             "moe_dense_experts_token_type_id",  // ERNIE
                                             "moe_enable_early_router",          // SmallThinker
                                             "moe_layer_feed_fake_token",
                                             "moe_layer_recompute",
                                             "moe_num_secondary_experts",       // SmallThinker
                                             "prefix_dense_intermediate_size",  // Cohere
                                             "router_type",
                                             "use_mixed_mlp_moe"};  // HunYuan's shared experts

// The rule for a name: one that speaks of experts, routers or MLPs is a schedule, unless another of
// its words says what else it is about. These are parts of words_of(), where "_" ends a word.
constexpr std::string_view kMlps[] = {"moe", "mlp", "expert", "rout"};
// Attention may be dense too.
constexpr std::string_view kDenseMlps[] = {"dense"};
constexpr std::string_view kAttentionParts[] = {
    "attn", "attention", "rope", "rotary", "window", "sliding", "_kv_", "index_topk", "indexer"};
constexpr std::string_view kOtherMatters[] = {
    // Sizes and values.
    "size", "dim", "width", "_wide_", "rank", "expansion", "mult", "scal", "factor", "weight",
    "bias", "initializer", "init_std", "_norm_", "normaliz", "_eps_", "clamp",
    // Functions.
    "_act_", "activation", "_fn_", "method", "softmax", "softcap", "sigmoid", "scor", "logit",
    "prob", "temperature",
    // Training.
    "_lr_", "loss", "aux", "balanc", "drop", "jitter", "noise", "capacity", "priorit",
    // How it is computed.
    "dtype", "fp8", "fp32", "quant", "bits", "parallel", "_tp_", "compile", "fuse", "fusion",
    "kernel", "backend", "implement", "dispatch", "recompute", "pad",
    // Other parts of the model.
    "shared", "group", "gate", "gating", "residual"};
// With one of these it is a schedule all the same.
constexpr std::string_view kWhichLayers[] = {
    "layer",  "idx",    "indices", "_ids",   "freq",     "every",    "period",
    "prefix", "suffix", "layout",  "_nth",   "interval", "step",     "first",
    "last",   "start",  "until",   "offset", "replace",  "alternat", "interleav"};
// These too, beside the number of a layer or a list.
constexpr std::string_view kWhereFrom[] = {"_from_", "_after_", "_before_",
                                           "begin",  "_end_",   "stride"};
constexpr std::string_view kChoices[] = {"pattern", "mask", "schedule", "placement", "skip"};
// These are also about much else, so the name must say that it is about layers.
constexpr std::string_view kMlpNames[] = {"gate", "gating", "spars",       "switch",
                                          "ffn",  "_ff_",   "feed_forward"};
constexpr std::string_view kLayerNames[] = {"layer", "block"};
// A number of picks: a list of these is as telling as one of kMlpNames.
constexpr std::string_view kPicks[] = {"topk", "top_k", "per_tok"};
// Parts of strings that say that layers differ, or that all are of one of these kinds.
constexpr std::string_view kKindsOfLayers[] = {
    "layer", "every", "alternat", "interleav", "hybrid", "mixed",  "dense", "spars", "first",
    "last",  "even",  "odd",      "from",      "after",  "before", "begin", "half",  "until"};
// Those that mean nothing else, whatever the key.
constexpr std::string_view kNthLayers[] = {"layer", "every", "alternat", "interleav"};

// "_moe_args_n_" for "moe_args.n" and "moe-args n". "_moe_args_moeargs_" for "moeArgs": there are
// "MoELayer" and "MLPType" too. A layer normalization is not about layers.
std::string words_of(const std::string& name) {
  std::string split = "_";
  std::string whole;
  for (const char c : name) {
    const bool is_upper = std::isupper(static_cast<unsigned char>(c)) != 0;
    if (is_upper && std::islower(static_cast<unsigned char>(split.back())) != 0) split += '_';
    split += c == '.' || c == '-' || c == ' ' ? '_' : c;
    whole += split.back();
  }
  std::string words =
      lower(split.size() == whole.size() + 1 ? split + '_' : split + '_' + whole + '_');
  for (const std::string_view norm : {"layernorm", "layer_norm"}) {
    for (auto at = words.find(norm); at != words.npos; at = words.find(norm)) {
      words.replace(at, norm.size(), "norm");
    }
  }
  return words;
}

bool is_of_attention(std::string_view words) { return has_one_of(words, kAttentionParts); }

bool is_of_experts(std::string_view words) {
  return has_one_of(words, kMlps) || (has_one_of(words, kDenseMlps) && !is_of_attention(words));
}

bool says_which_layers(std::string_view words) {
  return has_one_of(words, kWhichLayers) || has_one_of(words, kChoices);
}

// A list, or what could be the number of a layer, or numbers in a text.
bool could_be_layers(const Json& value, int num_layers) {
  if (value.is_number()) {
    const auto number = value.get<double>();
    return number >= 0 && number < num_layers && std::floor(number) == number;
  }
  return value.is_array() ||
         (value.is_string() && value.get_ref<const std::string&>().find_first_not_of(
                                   "0123456789,:- ") == std::string::npos);
}

bool looks_like_schedule(std::string_view words, const Json& value, int num_layers) {
  const bool says_which = says_which_layers(words) ||
                          (could_be_layers(value, num_layers) && has_one_of(words, kWhereFrom));
  if (is_of_experts(words)) return says_which || !has_one_of(words, kOtherMatters);
  if (is_of_attention(words)) return false;
  return (says_which && has_one_of(words, kMlpNames)) ||
         (has_one_of(words, kLayerNames) && has_one_of(words, kChoices));
}

// A letter, digit or "-" for each layer, of few kinds: "dmdmdmdm", also with commas between them.
bool is_pattern(std::string text, int num_layers) {
  constexpr std::size_t kMostKinds = 4;
  std::erase_if(text, [](char c) { return c == ',' || c == ' '; });
  if (text.size() != static_cast<std::size_t>(num_layers)) return false;
  if (!std::ranges::all_of(text, [](unsigned char c) { return c == '-' || std::isalnum(c) != 0; }))
    return false;
  std::ranges::sort(text);
  const auto kinds = static_cast<std::size_t>(std::unique(text.begin(), text.end()) - text.begin());
  return kinds > 1 && kinds <= kMostKinds && 2 * kinds <= static_cast<std::size_t>(num_layers);
}

// One kind for all layers: a word under a key that ends in "type" or "impl" and has no other word
// for which layers ("mlp_type": "swiglu").
bool names_a_kind(std::string_view words, const Json& value) {
  const bool is_of_kinds = words.ends_with("type_") || words.ends_with("_impl_");
  if (!value.is_string() || !is_of_kinds || says_which_layers(words)) return false;
  const std::string text = lower(value.get<std::string>());
  return text.find_first_not_of("abcdefghijklmnopqrstuvwxyz_-") == text.npos &&
         !has_one_of(text, kKindsOfLayers);
}

// Of published models, by name and form: a switch of DBRX, and sizes of a head of HunYuan.
bool is_harmless(const std::string& key, const Json& value, const ConfigValues& config) {
  if (is_one_of(key, kNoSchedules)) return true;
  if (is_one_of(key, kOfAllLayers)) {
    return value.is_number() || value.is_boolean() || names_a_kind(words_of(key), value);
  }
  if (key == "uniform_expert_assignment") return value.is_boolean();
  if (key == "moe_dynamic_exp_p") return value == 1;  // Step-3, which asserts it
  const Json* hidden = config.find("hidden_size");
  const auto is_size_or_none = [hidden](const Json& size) {
    return is_integer(size) && (size == *hidden || size == 0);
  };
  return key == "dense_list" && hidden && value.is_array() &&
         value.size() < static_cast<std::size_t>(config.num_layers()) &&
         std::ranges::find(value, *hidden) != value.end() &&
         std::ranges::all_of(value, is_size_or_none);
}

// The names of modules ("layers.0.mlp", "*experts") are no names of facts.
bool is_module(const std::string& key) {
  constexpr std::string_view kModules = "layers.";
  const std::size_t at = key.find(kModules);
  const bool is_of_one_layer =
      at != key.npos && std::isdigit(static_cast<unsigned char>(key[at + kModules.size()]));
  return is_of_one_layer || key.find('*') != key.npos;
}

// The words of a list or an object, also of those in it, and of strings such as "3*dense,5*moe".
std::vector<std::string> words_in(const Json& value) {
  std::vector<std::string> words;
  if (value.is_string()) {
    std::string text = lower(value.get<std::string>());
    std::ranges::replace_if(
        text,
        [](char c) {
          return std::string_view(",;:|/+*x 0123456789").find(c) != std::string_view::npos;
        },
        '\n');
    std::istringstream lines(text);
    for (std::string word; std::getline(lines, word);) {
      if (!word.empty()) words.push_back(word);
    }
  } else if (value.is_structured()) {
    for (const Json& part : value) {
      for (std::string& word : words_in(part)) words.push_back(std::move(word));
    }
  }
  return words;
}

// Words, one of which means a router, or could mean one if there is a word per layer.
bool tells_kinds_apart(const Json& value, int num_layers) {
  static constexpr std::string_view kRouters[] = {"moe", "experts"};
  static constexpr std::string_view kPlain[] = {"dense", "sparse", "mlp"};
  const std::vector<std::string> words = words_in(value);
  const auto count = [&words](std::span<const std::string_view> names) {
    return std::ranges::count_if(words, [names](auto& word) { return is_one_of(word, names); });
  };
  const auto routers = count(kRouters);
  const auto plain = count(kPlain);
  if (!value.is_array()) return routers > 0 && plain > 0 && routers + plain == std::ssize(words);
  if (routers > 0) return true;
  return value.size() == static_cast<std::size_t>(num_layers) &&
         std::ranges::any_of(words, [](const std::string& word) {
           return is_one_of(word, kPlain) || word == "e" || word.find("moe") != word.npos ||
                  word.find("expert") != word.npos;
         });
}

// Ascending layer ids, or a value for each layer (and perhaps for those of a draft model after
// them), not all of which are equal.
bool tells_layers_apart(const Json& list, int num_layers) {
  const auto is_layer = [num_layers](const Json& id) {
    return is_integer(id) && id >= 0 && id < num_layers;
  };
  const auto differs = [&](const Json& value) { return value != list.front(); };
  if (list.size() >= static_cast<std::size_t>(num_layers)) {
    return std::ranges::any_of(list, differs);
  }
  return !list.empty() && std::ranges::all_of(list, is_layer) &&
         std::ranges::is_sorted(list, std::less_equal<>());
}

// "1,3"
bool is_list_of_numbers(std::string_view text) {
  return text.find(',') != text.npos && text.find_first_not_of("0123456789, ") == text.npos;
}

// By its form, whatever other matters the name has.
bool is_list_of_layers(std::string_view words, const Json& value, int num_layers) {
  if (tells_kinds_apart(value, num_layers)) return true;
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    return (is_pattern(text, num_layers) && !is_of_attention(words)) ||
           (is_of_experts(words) &&
            (has_one_of(words_of(text), kNthLayers) || is_list_of_numbers(text))) ||
           (text.size() == static_cast<std::size_t>(num_layers) && text.find('E') != text.npos &&
            text.find_first_not_of("ME*-") == text.npos);
  }
  if (!value.is_array()) return false;
  const bool is_of_parts =
      !is_of_attention(words) && (has_one_of(words, kMlpNames) || has_one_of(words, kPicks));
  return (is_of_experts(words) || is_of_parts) && tells_layers_apart(value, num_layers);
}

bool has_objects(const Json& value) {
  return value.is_array() && std::ranges::any_of(value, &Json::is_object);
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
      if (value.is_null() || is_of_drafts(key) || is_one_of(key, switch_names()) ||
          is_harmless(key, value, config_)) {
        continue;
      }
      const std::string name = path + key;
      if (&value == &config_.model()) {
        check(value, name + ".", "");
        continue;
      }
      if (is_one_of(key, kRead) || is_one_of(key, expert_names()) ||
          is_one_of(key, top_k_names())) {
        if (!is_read(object, inside)) refuse_unless_said(name, key, value, inside.has_value());
        continue;
      }
      if (value.is_object() || has_objects(value)) {
        if (is_of_another_model(key)) continue;
        if (tells_kinds_apart(value, num_layers_)) refuse(name, value, kUnknown);
        check(value, name + ".", inside ? std::optional(*inside + key + ".") : std::nullopt);
      } else if (!is_module(key)) {
        check_fact(name, words_of(inside.value_or("") + key), value);
      }
    }
  }

 private:
  void check_fact(const std::string& name, const std::string& words, const Json& value) const {
    if ((looks_like_schedule(words, value, num_layers_) && !names_a_kind(words, value)) ||
        is_list_of_layers(words, value, num_layers_)) {
      refuse(name, value, kUnknown);
    }
  }

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
    for (const ConfigValues::Names names : {expert_names(), top_k_names()}) {
      if (is_one_of(key, names) && config_.number(names, 0) == value) return;
    }
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
