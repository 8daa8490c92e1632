#include "lib/shape/config_layers.h"

#include <moetap/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>

#include "lib/internal/json_text.h"
#include "lib/internal/text.h"
#include "lib/shape/config_words.h"

namespace moetap::detail {
namespace {

using Json = nlohmann::json;

// Layers before it are dense: DeepSeek, LFM2, Motif, Inkling, HunYuan.
constexpr std::string_view kDenseFirst[] = {"first_k_dense_replace", "num_dense_layers",
                                            "n_dense_first_layers", "dense_mlp_idx",
                                            "moe_layer_num_skipped"};

// Starts with all layers; each rule that the configuration states removes some. A list for each
// layer (is_moe_layer, mlp_layer_types) wins over the number of dense layers, as in the models' own
// code. Any other disagreement is an error.
class MoeLayers {
 public:
  explicit MoeLayers(const ConfigValues& config)
      : config_(config), moe_(static_cast<std::size_t>(config.num_layers()), true) {
    every_nth();
    named_layers();
    block_types();
    hybrid_pattern();
    layout();
    if (!layer_by_layer()) dense_first();
  }

  std::vector<int> list() const {
    std::vector<int> layers;
    for (int i = 0; i < size(); ++i) {
      if (moe_[static_cast<std::size_t>(i)]) layers.push_back(i);
    }
    return layers;
  }

 private:
  int size() const { return static_cast<int>(moe_.size()); }

  template <class Rule>
  void keep_if(Rule&& rule) {
    for (int i = 0; i < size(); ++i) {
      if (!rule(i)) moe_[static_cast<std::size_t>(i)] = false;
    }
  }
  void keep(const std::vector<bool>& layers) {
    keep_if([&](int i) { return layers[static_cast<std::size_t>(i)]; });
  }

  void dense_first() {
    if (const auto dense = config_.number(kDenseFirst, 0)) {
      keep_if([&](int i) { return i >= *dense; });
    }
    if (const Json* both = config_.find("first_last_k_dense_replace")) {  // EXAONE's first versions
      throw ArgumentError(
          fmt::format("\"first_last_k_dense_replace\" is {}, which programs read in different "
                      "ways: state \"is_moe_layer\" or \"mlp_layer_types\"",
                      shown(*both)));
    }
  }

  void every_nth() {
    const auto start = config_.number("moe_layer_start_index", 0);  // ERNIE
    const auto end = config_.number("moe_layer_end_index", -1);     // -1: to the last
    if (start) keep_if([&](int i) { return i >= *start; });
    if (end && *end >= 0) keep_if([&](int i) { return i <= *end; });
    // Layers n-1, 2n-1, … (Qwen, Llama 4, ERNIE, Arctic).
    for (const std::string_view key : {"decoder_sparse_step", "interleave_moe_layer_step",
                                       "moe_layer_interval", "moe_layer_frequency"}) {
      if (const auto n = config_.number(key, 1)) keep_if([&](int i) { return (i + 1) % *n == 0; });
    }
    // Layers 0, n, 2n, … (DeepSeek, Mistral), or a flag per layer.
    if (const Json* freq = config_.find("moe_layer_freq"); freq && freq->is_array()) {
      keep(flags("moe_layer_freq", *freq));
    } else if (const auto n = config_.number("moe_layer_freq", 1)) {
      keep_if([&](int i) { return i % *n == 0; });
    }
    if (const auto n = config_.number("route_every_n", 1)) {
      keep_if([&](int i) { return i % *n == 0; });
    }
    // Layers 1, n+1, 2n+1, … (Nomic), so there are none if n is 1.
    if (const auto n = config_.number("moe_every_n_layers", 2)) {
      keep_if([&](int i) { return i % *n == 1; });
    }
    if (const auto period = config_.number("expert_layer_period", 1)) {  // Jamba
      const std::int64_t offset = config_.number("expert_layer_offset", 0).value_or(0);
      keep_if([&](int i) { return i % *period == offset; });
    } else {
      refuse_alone("expert_layer_offset", "expert_layer_period");
    }
  }

  void refuse_alone(std::string_view key, std::string_view other) const {
    if (const Json* value = config_.find(key)) {
      throw ArgumentError(
          fmt::format("\"{}\" is {}, but there is no \"{}\", without which it says "
                      "nothing",
                      key, shown(*value), other));
    }
  }

  void require_entries(std::string_view key, const Json& list) const {
    if (!list.is_array() || list.size() != moe_.size()) {
      throw ArgumentError(fmt::format("\"{}\" has {} entries for {} layers: {}", key,
                                      list.is_array() ? list.size() : 1, moe_.size(), shown(list)));
    }
  }

  // 0 and 1, or false and true.
  std::vector<bool> flags(std::string_view key, const Json& list) const {
    require_entries(key, list);
    std::vector<bool> layers;
    for (const Json& value : list) layers.push_back(flag(key, value));
    return layers;
  }

  // Lists of words, some of which mean a router.
  std::vector<bool> words(std::string_view key, const Json& list, std::string_view router,
                          std::span<const std::string_view> others) const {
    require_entries(key, list);
    std::vector<bool> layers;
    for (const Json& word : list) {
      layers.push_back(word == router);
      if (layers.back() || std::ranges::find(others, word) != others.end()) continue;
      throw ArgumentError(fmt::format("\"{}\" has {}; known are \"{}\" and {}", key, shown(word),
                                      router, join(others)));
    }
    return layers;
  }

  void named_layers() {
    if (const Json* list = config_.find("mlp_only_layers")) {
      std::vector<bool> dense = named("mlp_only_layers", *list);
      dense.flip();
      keep(dense);
    }
    const Json* enumerated = config_.find("moe_layers_enum");  // Step-3
    if (enumerated) keep(named("moe_layers_enum", *enumerated));
    for (const auto& [key, nothing] :
         {std::pair{"moe_every_n_layer", 1}, {"moe_layer_offset", 0}}) {
      const Json* value = config_.find(key);
      if (!value) continue;
      if (!enumerated) refuse_alone(key, "moe_layers_enum");
      if (*value != nothing) {
        throw ArgumentError(
            fmt::format("\"{}\" is {}, but beside \"moe_layers_enum\" only {} is "
                        "understood",
                        key, shown(*value), nothing));
      }
    }
    const Json* list = config_.find("moe_layers");  // Llama 4, which states its step as well
    if (!list) return;
    const std::vector<bool> listed = named("moe_layers", *list);
    const Json* step = config_.find("interleave_moe_layer_step");
    if (step && listed != moe_) {
      throw ArgumentError(
          fmt::format("\"moe_layers\" is {}, but \"interleave_moe_layer_step\" is {}", shown(*list),
                      shown(*step)));
    }
    keep(listed);
  }

  // The layers of a list of ids, or of a string of them ("3,4,5").
  std::vector<bool> named(std::string_view key, const Json& list) const {
    const Json ids = list.is_string() ? parse_ids(key, list.get_ref<const std::string&>()) : list;
    if (!ids.is_array()) {
      throw ArgumentError(
          fmt::format("\"{}\" is {}; it must be a list of layers", key, shown(ids)));
    }
    std::vector<bool> layers(moe_.size());
    for (const Json& id : ids) {
      layers[static_cast<std::size_t>(integer(key, id, 0, size() - 1))] = true;
    }
    return layers;
  }

  static Json parse_ids(std::string_view key, const std::string& text) {
    try {
      return parse_json("[" + text + "]", key);
    } catch (const ArgumentError&) {
      throw ArgumentError(
          fmt::format("\"{}\" is {}; it must be numbers and commas", key, shown(text)));
    }
  }

  // The kinds of a hybrid model's blocks (Nemotron-H). Lists that name only attention (Jamba, Qwen)
  // say nothing about the MLPs after it; some of them continue with a draft model's layers
  // (Step-3.5).
  void block_types() {
    for (const std::string_view key : {"layers_block_type", "layer_types"}) {
      const Json* list = config_.find(key);
      if (!list || is_list_of_attention(*list)) continue;
      if (!list->is_array()) {
        throw ArgumentError(fmt::format(
            "\"{}\" is {}; it must be a list of one word for each layer", key, shown(*list)));
      }
      for (const Json& word : *list) {
        if (layer_word(word)) continue;
        throw ArgumentError(
            fmt::format("\"{}\" has {}; known are {}", key, shown(word), known_layer_words()));
      }
      require_entries(key, *list);
      keep_if([&](int i) {
        return layer_word((*list)[static_cast<std::size_t>(i)]) == LayerWord::router;
      });
    }
  }

  void hybrid_pattern() {
    const Json* value = config_.find("hybrid_override_pattern");  // Nemotron-H
    if (!value) return;
    if (!value->is_string() || value->get_ref<const std::string&>().size() != moe_.size()) {
      throw ArgumentError(fmt::format(
          "\"hybrid_override_pattern\" is {}; it must be a string of one letter for each of the {} "
          "layers",
          shown(*value), moe_.size()));
    }
    const auto& pattern = value->get_ref<const std::string&>();
    if (const auto at = pattern.find_first_not_of("ME*-"); at != pattern.npos) {
      throw ArgumentError(fmt::format(
          "\"hybrid_override_pattern\" is {}, with {} for layer {}; known are M (Mamba), "
          "E (experts), * (attention) and - (MLP)",
          shown(*value), shown(pattern.substr(at, 1)), at));
    }
    keep_if([&](int i) { return pattern[static_cast<std::size_t>(i)] == 'E'; });
  }

  // SmallThinker's own code takes all layers, whatever the list says.
  void layout() const {
    const Json* list = config_.find("moe_layer_layout");
    if (!list || std::ranges::count(flags("moe_layer_layout", *list), false) == 0) return;
    throw ArgumentError(
        fmt::format("\"moe_layer_layout\" is {}, which programs read in different ways: name the "
                    "MoE layers with ModelShape's constructor",
                    shown(*list)));
  }

  // Whether there was such a list.
  bool layer_by_layer() {
    constexpr std::string_view kDense[] = {"dense"};
    std::string_view first;
    for (const std::string_view key : {"mlp_layer_types", "is_moe_layer"}) {
      const Json* list = config_.find(key);
      if (!list) continue;
      const std::vector<bool> layers =
          key == "is_moe_layer" ? flags(key, *list) : words(key, *list, "sparse", kDense);
      for (int i = 0; i < size(); ++i) {
        const auto index = static_cast<std::size_t>(i);
        const bool must_be_equal = !first.empty();
        if (layers[index] == moe_[index] || (!layers[index] && !must_be_equal)) continue;
        throw ArgumentError(
            fmt::format("\"{}\" says that layer {} is {}, but {} says otherwise", key, i,
                        layers[index] ? "MoE" : "dense",
                        first.empty() ? "another layer schedule" : fmt::format("\"{}\"", first)));
      }
      keep(layers);
      first = key;
    }
    return !first.empty();
  }

  const ConfigValues& config_;
  std::vector<bool> moe_;
};

}  // namespace

std::vector<int> moe_layers_of(const ConfigValues& config) { return MoeLayers(config).list(); }

}  // namespace moetap::detail
