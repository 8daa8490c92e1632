// The facts of a Hugging Face or Mistral configuration. Each model family has its own words for
// them; what is not understood for certain is refused.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string_view>

namespace moetap::detail {

// The part of a configuration that describes the language model. Refers to the JSON. Everything
// throws ArgumentError that names the key.
class ConfigValues {
 public:
  using Json = nlohmann::json;
  using Names = std::span<const std::string_view>;
  static constexpr std::int64_t kMaxInt = std::numeric_limits<int>::max();

  explicit ConfigValues(const Json& model) : model_(model) {}

  const Json& model() const { return model_; }

  // Null if it is absent or null. Some keep their experts one level down: kNested.
  const Json* find(std::string_view key) const;
  static constexpr std::string_view kNested[] = {"ffn_config", "moe",  // DBRX, Mistral
                                                 "moe_config"};        // Yuan

  // A whole number, or for experts and top-k a list of the same one for each layer (HunYuan).
  std::optional<std::int64_t> number(std::string_view key, std::int64_t least,
                                     std::int64_t most = kMaxInt) const;
  // Several names for one fact: those that are there must agree.
  std::optional<std::int64_t> number(Names keys, std::int64_t least,
                                     std::int64_t most = kMaxInt) const;

  // Whether one of the switches that models have for that says that there are none.
  bool experts_are_off() const;
  // 0 for a dense model: some of those carry the key with 0, 1 or null.
  std::int64_t num_experts() const;
  int top_k() const;
  int num_layers() const;

  // `other` is a further description of the same model, which may leave out what it likes: it is an
  // error if it states another number of layers, experts or picks. Prefixes: of keys' names.
  void require_same(std::string_view prefix, const ConfigValues& other,
                    std::string_view other_prefix) const;

 private:
  const Json& same_in_each_layer(std::string_view key, const Json& list) const;
  std::string_view stated(Names keys) const;
  void refuse_layers_that_differ() const;

  const Json& model_;
};

// The names of the number of experts, for messages.
std::span<const std::string_view> expert_names();
// Of what turns a model's experts off.
std::span<const std::string_view> switch_names();
// Of the number of experts a token.
std::span<const std::string_view> top_k_names();

// false or true, or 0 or 1; ArgumentError for anything else.
bool flag(std::string_view key, const nlohmann::json& value);

}  // namespace moetap::detail
