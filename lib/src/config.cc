// Model shapes from Hugging Face configurations. Each family has its own words for the same four
// facts; this file knows the words, and refuses what it cannot read for certain.
#include <moetap/error.h>
#include <moetap/shape.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <limits>
#include <optional>
#include <span>

#include "json_text.h"
#include "text.h"

namespace moetap {
namespace {

using Json = nlohmann::json;
using Names = std::span<const std::string_view>;

constexpr std::string_view kLayers[] = {"num_hidden_layers", "num_layers", "n_layers", "n_layer"};
constexpr std::string_view kExperts[] = {"num_experts", "n_routed_experts", "num_local_experts",
                                         "moe_num_experts"};
constexpr std::string_view kTopK[] = {
    "num_experts_per_tok",  "num_experts_per_token", "top_k_experts", "moe_top_k", "moe_topk",
    "num_selected_experts", "experts_per_token",     "moe_k"};
constexpr std::string_view kDenseFirst[] = {"first_k_dense_replace", "num_dense_layers"};

// Not more than a shape can have; it also keeps a nonsensical file from taking memory.
constexpr std::int64_t kMaxModelLayers = ModelShape::kMaxLayers;

constexpr std::int64_t kMaxInt = std::numeric_limits<int>::max();

using detail::integer;

// The part of a configuration that describes the language model.
class Config {
 public:
  explicit Config(const Json& model) : model_(model) {}

  // Null if it is absent or null. DBRX keeps its experts one level down.
  const Json* find(std::string_view key) const {
    for (const Json* object : {&model_, child(model_, "ffn_config")}) {
      const Json* value = object ? child(*object, key) : nullptr;
      if (value && !value->is_null()) return value;
    }
    return nullptr;
  }

  std::optional<std::int64_t> number(std::string_view key, std::int64_t least,
                                     std::int64_t most = kMaxInt) const {
    const Json* value = find(key);
    if (!value) return std::nullopt;
    const bool per_layer =  // HunYuan
        value->is_array() && std::find(std::begin(kTopK), std::end(kTopK), key) != std::end(kTopK);
    return integer(key, per_layer ? same_in_each_layer(key, *value) : *value, least, most);
  }

  // Several names for one fact: those that are there must agree.
  std::optional<std::int64_t> number(Names keys, std::int64_t least,
                                     std::int64_t most = kMaxInt) const {
    std::optional<std::int64_t> result;
    std::string_view source;
    for (const std::string_view key : keys) {
      const auto value = number(key, least, most);
      if (!value) continue;
      if (result && *result != *value) {
        throw ArgumentError(
            fmt::format("\"{}\" is {}, but \"{}\" is {}", source, *result, key, *value));
      }
      result = value;
      source = key;
    }
    return result;
  }

  // 0 for a dense model: some of those carry the key with 0 or null.
  std::int64_t num_experts() const {
    if (const Json* enabled = find("enable_moe_block"); enabled && *enabled == false) return 0;
    const std::int64_t routed = number(kExperts, 0, ModelShape::kMaxExperts).value_or(0);
    // Identity experts (LongCat) are picked by the router too, with ids behind the others'.
    if (routed == 0) return 0;
    return routed + number("zero_expert_num", 0, ModelShape::kMaxExperts).value_or(0);
  }

  int num_layers() const {
    if (const auto layers = number(kLayers, 1, kMaxModelLayers)) return static_cast<int>(*layers);
    if (const Json* pattern = find("hybrid_override_pattern"); pattern && pattern->is_string()) {
      return static_cast<int>(integer("length of hybrid_override_pattern",
                                      pattern->get_ref<const std::string&>().size(), 1,
                                      kMaxModelLayers));
    }
    throw ArgumentError("the number of layers is missing: \"num_hidden_layers\"");
  }

 private:
  static const Json* child(const Json& object, std::string_view key) {
    if (!object.is_object()) return nullptr;
    const auto found = object.find(std::string(key));
    return found == object.end() ? nullptr : &*found;
  }

  // One number for all layers, or nothing that a row could be made of.
  const Json& same_in_each_layer(std::string_view key, const Json& list) const {
    const bool same =
        !list.empty() && std::all_of(list.begin(), list.end(),
                                     [&](const Json& value) { return value == list.front(); });
    if (!same || list.size() != static_cast<std::size_t>(num_layers())) {
      throw ArgumentError(
          fmt::format("\"{}\" is {}; a list must have the same number for each layer", key,
                      detail::shown(list)));
    }
    return list.front();
  }

  const Json& model_;
};

// Which layers have a router. Starts with all; each rule that the configuration states takes some
// away.
class MoeLayers {
 public:
  MoeLayers(const Config& config, int num_layers)
      : config_(config), moe_(static_cast<std::size_t>(num_layers), true) {
    dense_first();
    every_nth();
    explicit_list();
    hybrid_pattern();
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

  void dense_first() {
    if (const auto dense = config_.number(kDenseFirst, 0)) {
      keep_if([&](int i) { return i >= *dense; });
    }
    const auto start = config_.number("moe_layer_start_index", 0);  // ERNIE
    const auto end = config_.number("moe_layer_end_index", -1);     // -1: to the last
    if (start) keep_if([&](int i) { return i >= *start; });
    if (end && *end >= 0) keep_if([&](int i) { return i <= *end; });
  }

  void every_nth() {
    // Layers n-1, 2n-1, … (Qwen, Llama 4, ERNIE, Arctic).
    for (const std::string_view key : {"decoder_sparse_step", "interleave_moe_layer_step",
                                       "moe_layer_interval", "moe_layer_frequency"}) {
      if (const auto n = config_.number(key, 1)) keep_if([&](int i) { return (i + 1) % *n == 0; });
    }
    // Layers 0, n, 2n, … (DeepSeek), or a flag a layer.
    if (const Json* freq = config_.find("moe_layer_freq"); freq && freq->is_array()) {
      flags("moe_layer_freq", *freq);
    } else if (const auto n = config_.number("moe_layer_freq", 1)) {
      keep_if([&](int i) { return i % *n == 0; });
    }
    if (const auto period = config_.number("expert_layer_period", 1)) {  // Jamba
      const std::int64_t offset = config_.number("expert_layer_offset", 0).value_or(0);
      keep_if([&](int i) { return i % *period == offset; });
    }
  }

  void flags(std::string_view key, const Json& list) {
    if (list.size() != moe_.size()) {
      throw ArgumentError(
          fmt::format("\"{}\" has {} entries for {} layers", key, list.size(), moe_.size()));
    }
    keep_if([&](int i) { return integer(key, list[static_cast<std::size_t>(i)], 0, 1) == 1; });
  }

  void explicit_list() {
    if (const Json* list = config_.find("mlp_only_layers")) {
      const std::vector<bool> dense = named("mlp_only_layers", *list);
      keep_if([&](int i) { return !dense[static_cast<std::size_t>(i)]; });
    }
    if (const Json* list = config_.find("moe_layers_enum")) {  // Step-3
      const std::vector<bool> named_layers = named("moe_layers_enum", *list);
      keep_if([&](int i) { return named_layers[static_cast<std::size_t>(i)]; });
    }
    const Json* list = config_.find("moe_layers");  // Llama 4, which states its step as well
    if (!list) return;
    const std::vector<bool> listed = named("moe_layers", *list);
    const Json* step = config_.find("interleave_moe_layer_step");
    if (step && listed != moe_) {
      throw ArgumentError(
          fmt::format("\"moe_layers\" is {}, but \"interleave_moe_layer_step\" is {}",
                      detail::shown(*list), detail::shown(*step)));
    }
    keep_if([&](int i) { return listed[static_cast<std::size_t>(i)]; });
  }

  // The layers of a list of ids, or of a string of them ("3,4,5").
  std::vector<bool> named(std::string_view key, const Json& list) const {
    const Json ids = list.is_string() ? parse_ids(key, list.get_ref<const std::string&>()) : list;
    if (!ids.is_array()) {
      throw ArgumentError(
          fmt::format("\"{}\" is {}; it must be a list of layers", key, detail::shown(ids)));
    }
    std::vector<bool> layers(moe_.size());
    for (const Json& id : ids) {
      layers[static_cast<std::size_t>(integer(key, id, 0, size() - 1))] = true;
    }
    return layers;
  }

  static Json parse_ids(std::string_view key, const std::string& text) {
    try {
      return detail::parse_json("[" + text + "]", key);
    } catch (const ArgumentError&) {
      throw ArgumentError(
          fmt::format("\"{}\" is {}; it must be numbers and commas", key, detail::shown(text)));
    }
  }

  void hybrid_pattern() {
    const Json* value = config_.find("hybrid_override_pattern");  // Nemotron-H
    if (!value) return;
    if (!value->is_string() || value->get_ref<const std::string&>().size() != moe_.size()) {
      throw ArgumentError(fmt::format(
          "\"hybrid_override_pattern\" is {}; it must be a string of one letter for each of the {} "
          "layers",
          detail::shown(*value), moe_.size()));
    }
    const auto& pattern = value->get_ref<const std::string&>();
    keep_if([&](int i) { return pattern[static_cast<std::size_t>(i)] == 'E'; });
  }

  const Config& config_;
  std::vector<bool> moe_;
};

// The language model of a configuration: multimodal ones have it one or two levels down.
const Json& language_model(const Json& root) {
  if (!root.is_object()) throw ArgumentError("the configuration is not a JSON object");
  for (const char* path :
       {"/text_config", "/thinker_config/text_config", "/llm_config", "/language_config", ""}) {
    const Json::json_pointer pointer(path);
    if (!root.contains(pointer) || !root[pointer].is_object()) continue;
    if (Config(root[pointer]).num_experts() > 0) return root[pointer];
  }
  throw ArgumentError(fmt::format(
      "a dense model has no routes: none of {} is above 0, at the top or under \"text_config\"",
      detail::join(kExperts)));
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw SystemError(errno, "cannot open " + path.string());
  std::string text;
  char chunk[4096];
  while (file.read(chunk, sizeof chunk) || file.gcount() > 0) {
    text.append(chunk, static_cast<std::size_t>(file.gcount()));
  }
  if (file.bad()) throw SystemError(errno, "cannot read " + path.string());
  return text;
}

}  // namespace

ModelShape ModelShape::from_config(std::string_view json) {
  const Json root = detail::parse_json(json, "the configuration");
  const Config config(language_model(root));
  const auto top_k = config.number(kTopK, 1);
  if (!top_k) {
    throw ArgumentError(fmt::format("the number of experts a token is missing: none of {} is there",
                                    detail::join(kTopK)));
  }
  const int num_layers = config.num_layers();
  return ModelShape(MoeLayers(config, num_layers).list(), static_cast<int>(*top_k),
                    static_cast<int>(config.num_experts()), num_layers);
}

ModelShape ModelShape::from_config_file(const std::filesystem::path& path) {
  const std::string text = read_file(path);
  try {
    return from_config(text);
  } catch (const ArgumentError& error) {
    throw ArgumentError(path.string() + ": " + error.what());
  }
}

}  // namespace moetap
