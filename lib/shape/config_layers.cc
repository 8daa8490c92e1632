#include "lib/shape/config_layers.h"

#include <moetap/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/internal/json_text.h"
#include "lib/internal/text.h"
#include "lib/shape/config_words.h"

namespace moetap::detail {
namespace {

using Json = nlohmann::json;

// Several names for one fact: layers before it are dense (DeepSeek, LFM2, Motif, Inkling, HunYuan,
// llama.cpp's files).
constexpr std::string_view kDenseFirst[] = {"first_k_dense_replace", "num_dense_layers",
                                            "n_dense_first_layers",  "dense_mlp_idx",
                                            "moe_layer_num_skipped", "leading_dense_block_count"};

constexpr std::string_view kEveryNth[] = {"moe_layer_freq", "route_every_n"};

// A number n of a configuration, and whether layer i may have a router by it.
struct Number {
  std::string_view key;
  std::int64_t least;
  bool (*rule)(std::int64_t i, std::int64_t n);
};
bool is_from(std::int64_t i, std::int64_t n) { return i >= n; }
bool is_up_to(std::int64_t i, std::int64_t n) { return n < 0 || i <= n; }  // -1: to the last
// Layers 0, n, 2n, …
bool is_multiple(std::int64_t i, std::int64_t n) { return i % n == 0; }
// Layers n-1, 2n-1, …
bool is_before_multiple(std::int64_t i, std::int64_t n) { return (i + 1) % n == 0; }
// Layers 1, n+1, 2n+1, …, so there are none if n is 1.
bool is_after_multiple(std::int64_t i, std::int64_t n) { return i % n == 1; }

// The numbers that one family uses together: layers to which all of them apply have a router.
// Numbers of two families are two schedules; no known model combines them.
using Family = std::span<const Number>;
constexpr Number kDeepSeek[] = {{"first_k_dense_replace", 0, is_from},  // Mistral too
                                {"moe_layer_freq", 1, is_multiple},
                                {"route_every_n", 1, is_multiple}};
constexpr Number kErnie[] = {{"moe_layer_start_index", 0, is_from},
                             {"moe_layer_end_index", -1, is_up_to},
                             {"moe_layer_interval", 1, is_before_multiple}};
constexpr Number kLlama4[] = {{"interleave_moe_layer_step", 1, is_before_multiple},  // Motif
                              {"n_dense_first_layers", 0, is_from}};
constexpr Number kQwen[] = {{"decoder_sparse_step", 1, is_before_multiple}};  // and a list
constexpr Number kArctic[] = {{"moe_layer_frequency", 1, is_before_multiple}};
constexpr Number kNomic[] = {{"moe_every_n_layers", 2, is_after_multiple}};
constexpr Number kLfm2[] = {{"num_dense_layers", 0, is_from}};
constexpr Number kInkling[] = {{"dense_mlp_idx", 0, is_from}};
constexpr Number kHunYuan[] = {{"moe_layer_num_skipped", 0, is_from}};
constexpr Number kLlamaCpp[] = {{"leading_dense_block_count", 0, is_from}};
constexpr Family kFamilies[] = {kDeepSeek, kErnie,   kLlama4,  kArctic,  kNomic,
                                kLfm2,     kInkling, kHunYuan, kLlamaCpp};

// What a configuration says in one way: by a list, or by the numbers of one family.
struct Schedule {
  std::string says;  // "\"moe_layer_interval\" is 2", for messages
  std::vector<bool> moe;
};

// Each way in which the configuration states its MoE layers. All must say the same, but for
// mlp_layer_types, which wins over first_k_dense_replace as in the models' own code.
class MoeLayers {
 public:
  explicit MoeLayers(const ConfigValues& config)
      : config_(config), num_layers_(static_cast<std::size_t>(config.num_layers())) {
    numbers();
    named_layers();
    block_types();
    hybrid_pattern();
    layer_by_layer();
    for (std::size_t i = 1; i < schedules_.size(); ++i) {
      require_same(schedules_[0], schedules_[i]);
    }
  }

  std::vector<int> list() const {
    std::vector<int> layers;
    for (int i = 0; i < size(); ++i) {
      if (schedules_.empty() || schedules_[0].moe[static_cast<std::size_t>(i)]) layers.push_back(i);
    }
    return layers;
  }

 private:
  int size() const { return static_cast<int>(num_layers_); }

  static void require_same(const Schedule& a, const Schedule& b) {
    const auto differs = std::ranges::mismatch(a.moe, b.moe).in1;
    if (differs == a.moe.end()) return;
    throw ArgumentError(
        fmt::format("{}, but {}: layer {} has experts by the one and none by the "
                    "other. Correct the one that is wrong, or name the MoE layers with "
                    "ModelShape's constructor",
                    a.says, b.says, differs - a.moe.begin()));
  }

  static std::string says(std::string_view key, const Json& value) {
    return fmt::format("\"{}\" is {}", key, shown(value));
  }

  template <class Has>
  std::vector<bool> layers_if(Has&& has) const {
    std::vector<bool> moe(num_layers_);
    for (int i = 0; i < size(); ++i) moe[static_cast<std::size_t>(i)] = has(i);
    return moe;
  }

  void add(std::string_view key, const Json& value, std::vector<bool> moe) {
    schedules_.push_back({says(key, value), std::move(moe)});
  }

  // Numbers by which every layer has a router say nothing: programs write them into any file.
  void add_numbers(Schedule schedule) {
    if (std::ranges::count(schedule.moe, false) != 0) schedules_.push_back(std::move(schedule));
  }

  void apply(const Number& number, Schedule& to) const {
    const Json* value = config_.find(number.key);
    if (!value || (number.key == "moe_layer_freq" && value->is_array())) return;
    const std::int64_t n = *config_.number(number.key, number.least);
    if (!to.says.empty()) to.says += " and ";
    to.says += says(number.key, *value);
    for (int i = 0; i < size(); ++i) {
      if (!number.rule(i, n)) to.moe[static_cast<std::size_t>(i)] = false;
    }
  }

  Schedule numbers_of(Family family) const {
    Schedule schedule{"", std::vector<bool>(num_layers_, true)};
    for (const Number& number : family) {
      if (number.key == "first_k_dense_replace" && config_.find("mlp_layer_types")) continue;
      apply(number, schedule);
    }
    return schedule;
  }

  void numbers() {
    config_.number(kDenseFirst, 0);  // which must agree, as must these
    if (const Json* freq = config_.find(kEveryNth[0]); !freq || !freq->is_array()) {
      config_.number(kEveryNth, 1);
    }
    for (const Family family : kFamilies) add_numbers(numbers_of(family));
    qwen();
    jamba();
    if (const Json* both = config_.find("first_last_k_dense_replace");
        both && !config_.find("is_moe_layer") && !config_.find("mlp_layer_types")) {
      throw ArgumentError(  // EXAONE's first versions
          fmt::format("\"first_last_k_dense_replace\" is {}, which programs read in different "
                      "ways: state \"is_moe_layer\" or \"mlp_layer_types\"",
                      shown(*both)));
    }
  }

  void qwen() {
    Schedule schedule = numbers_of(kQwen);
    if (const Json* dense = config_.find("mlp_only_layers")) {
      const std::vector<bool> listed = named("mlp_only_layers", *dense);
      if (!schedule.says.empty()) schedule.says += " and ";
      schedule.says += says("mlp_only_layers", *dense);
      for (std::size_t i = 0; i < num_layers_; ++i) {
        if (listed[i]) schedule.moe[i] = false;
      }
    }
    add_numbers(std::move(schedule));
  }

  void jamba() {
    const auto period = config_.number("expert_layer_period", 1);
    if (!period) return refuse_alone("expert_layer_offset", "expert_layer_period");
    const std::int64_t offset = config_.number("expert_layer_offset", 0).value_or(0);
    add_numbers({fmt::format("\"expert_layer_period\" is {} and \"expert_layer_offset\" is {}",
                             *period, offset),
                 layers_if([&](int i) { return i % *period == offset; })});
  }

  void refuse_alone(std::string_view key, std::string_view other) const {
    if (const Json* value = config_.find(key)) {
      throw ArgumentError(
          fmt::format("\"{}\" is {}, but there is no \"{}\", without which it says "
                      "nothing: give both or neither",
                      key, shown(*value), other));
    }
  }

  void require_entries(std::string_view key, const Json& list) const {
    if (!list.is_array() || list.size() != num_layers_) {
      throw ArgumentError(
          fmt::format("\"{}\" has {} entries for {} layers: {}; it must be a list of one for each",
                      key, list.is_array() ? list.size() : 1, num_layers_, shown(list)));
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
      const auto is_it = [&](std::string_view other) { return word == other; };
      if (layers.back() || std::ranges::any_of(others, is_it)) continue;
      throw ArgumentError(fmt::format("\"{}\" has {}; known are \"{}\" and {}", key, shown(word),
                                      router, join(others)));
    }
    return layers;
  }

  void named_layers() {
    if (const Json* freq = config_.find("moe_layer_freq"); freq && freq->is_array()) {
      add("moe_layer_freq", *freq, flags("moe_layer_freq", *freq));
    }
    const Json* enumerated = config_.find("moe_layers_enum");  // Step-3
    if (enumerated) add("moe_layers_enum", *enumerated, named("moe_layers_enum", *enumerated));
    for (const auto& [key, nothing] :
         {std::pair{"moe_every_n_layer", 1}, {"moe_layer_offset", 0}}) {
      const Json* value = config_.find(key);
      if (!value) continue;
      if (!enumerated) refuse_alone(key, "moe_layers_enum");
      if (*value != nothing) {
        throw ArgumentError(
            fmt::format("\"{}\" is {}, but beside \"moe_layers_enum\" only {} is "
                        "understood: name the MoE layers with ModelShape's constructor",
                        key, shown(*value), nothing));
      }
    }
    const Json* list = config_.find("moe_layers");  // Llama 4, which states its step as well
    if (!list) return;
    add("moe_layers", *list, named("moe_layers", *list));
    // A step of 1 says something beside this list.
    if (config_.find("interleave_moe_layer_step")) {
      require_same(schedules_.back(), numbers_of(std::span(kLlama4).first(1)));
    }
  }

  // The layers of a list of ids, or of a string of them ("3,4,5").
  std::vector<bool> named(std::string_view key, const Json& list) const {
    const Json ids = list.is_string() ? parse_ids(key, list.get_ref<const std::string&>()) : list;
    if (!ids.is_array()) {
      throw ArgumentError(
          fmt::format("\"{}\" is {}; it must be a list of layers", key, shown(ids)));
    }
    std::vector<bool> layers(num_layers_);
    for (const Json& id : ids) {
      auto layer = layers[static_cast<std::size_t>(integer(key, id, 0, size() - 1))];
      if (layer) {
        throw ArgumentError(fmt::format("\"{}\" is {}, with layer {} twice: list each once", key,
                                        shown(list), shown(id)));
      }
      layer = true;
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
      add(key, *list, layers_if([&](int i) {
            return layer_word((*list)[static_cast<std::size_t>(i)]) == LayerWord::router;
          }));
    }
  }

  void hybrid_pattern() {
    const Json* value = config_.find("hybrid_override_pattern");  // Nemotron-H
    if (!value) return;
    if (!value->is_string() || value->get_ref<const std::string&>().size() != num_layers_) {
      throw ArgumentError(fmt::format(
          "\"hybrid_override_pattern\" is {}; it must be a string of one letter for each of the {} "
          "layers",
          shown(*value), num_layers_));
    }
    const auto& pattern = value->get_ref<const std::string&>();
    if (const auto at = pattern.find_first_not_of("ME*-"); at != pattern.npos) {
      throw ArgumentError(fmt::format(
          "\"hybrid_override_pattern\" is {}, with {} for layer {}; known are M (Mamba), "
          "E (experts), * (attention) and - (MLP)",
          shown(*value), shown(pattern.substr(at, 1)), at));
    }
    add("hybrid_override_pattern", *value,
        layers_if([&](int i) { return pattern[static_cast<std::size_t>(i)] == 'E'; }));
  }

  void layer_by_layer() {
    constexpr std::string_view kDense[] = {"dense"};
    if (const Json* list = config_.find("mlp_layer_types")) {
      add("mlp_layer_types", *list, words("mlp_layer_types", *list, "sparse", kDense));
    }
    if (const Json* list = config_.find("is_moe_layer")) {
      add("is_moe_layer", *list, flags("is_moe_layer", *list));
    }
    const Json* layout = config_.find("moe_layer_layout");
    if (!layout) return;
    // SmallThinker's own code takes all layers, whatever the list says.
    const std::vector<bool> listed = flags("moe_layer_layout", *layout);
    if (std::ranges::count(listed, false) != 0) {
      throw ArgumentError(
          fmt::format("\"moe_layer_layout\" is {}, which programs read in different ways: name the "
                      "MoE layers with ModelShape's constructor",
                      shown(*layout)));
    }
    add("moe_layer_layout", *layout, listed);
  }

  const ConfigValues& config_;
  std::size_t num_layers_;
  std::vector<Schedule> schedules_;
};

}  // namespace

std::vector<int> moe_layers_of(const ConfigValues& config) { return MoeLayers(config).list(); }

}  // namespace moetap::detail
