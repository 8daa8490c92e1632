// The facts in a Hugging Face or Mistral configuration. Each model family has its own names for
// them. What is not understood for certain is refused.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string_view>

namespace moetap::detail {

// The part of a configuration that describes the language model. Refers to the JSON. All functions
// throw ArgumentError that names the key.
class ConfigValues {
 public:
  using Json = nlohmann::json;
  using Names = std::span<const std::string_view>;
  static constexpr std::int64_t kMaxInt = std::numeric_limits<int>::max();

  explicit ConfigValues(const Json& model) : model_(model) {}

  const Json& model() const { return model_; }

  // Null if the value is absent or null. Some models have their experts one level down: kNested.
  const Json* find(std::string_view key) const;
  static constexpr std::string_view kNested[] = {"ffn_config", "moe",  // DBRX, Mistral
                                                 "moe_config"};        // Yuan

  // A whole number, or for experts and top-k a list of the same one for each layer (HunYuan).
  std::optional<std::int64_t> number(std::string_view key, std::int64_t least,
                                     std::int64_t most = kMaxInt) const;
  // Several names for one fact: those that exist must agree.
  std::optional<std::int64_t> number(Names keys, std::int64_t least,
                                     std::int64_t most = kMaxInt) const;

  // Whether a switch in the configuration turns the experts off.
  bool experts_are_off() const;
  // 0 for a dense model: some dense models have the key with 0, 1 or null.
  std::int64_t num_experts() const;
  int top_k() const;
  int num_layers() const;

  // `other` is a second description of the same model, which may be incomplete. It is an error if
  // it states another number of layers, experts or picks. The prefixes are for keys' names in
  // messages.
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
// The names of the switches that turn the experts off.
std::span<const std::string_view> switch_names();
// The names of the number of experts per token.
std::span<const std::string_view> top_k_names();

// false or true, or 0 or 1; ArgumentError for anything else.
bool flag(std::string_view key, const nlohmann::json& value);

}  // namespace moetap::detail
