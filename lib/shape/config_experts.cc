#include "lib/shape/config_experts.h"

#include <moetap/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "lib/internal/json_text.h"
#include "lib/shape/config_values.h"
#include "lib/shape/config_words.h"

namespace moetap::detail {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kCounts[] = {"num", "count", "_n_", ".n_"};
// Keys for experts that no router picks, or for picks per token.
constexpr std::string_view kNoCounts[] = {"shared", "per_tok", "topk", "top_k"};

// The full name, e.g. "text_config.num_experts", whose last part is `key`.
bool looks_like_number_of_experts(const std::string& name, std::string_view key) {
  if (is_one_of(key, top_k_names())) return false;
  const std::string words = lower("." + name);
  if (words.find("expert") == words.npos || has_one_of(words, kNoCounts)) return false;
  return has_one_of(words, kCounts) || is_one_of(key, expert_names()) ||
         lower(std::string(key)).ends_with("experts");
}

// Text may be a number too: what is not understood must not be guessed.
bool is_above_one(const Json& value) {
  if (value.is_number()) return value > 1;
  if (value.is_array()) return std::ranges::any_of(value, is_above_one);
  if (!value.is_string()) return false;
  const auto& text = value.get_ref<const std::string&>();
  return text != "0" && text != "1" && !text.empty() &&
         text.find_first_not_of("0123456789") == text.npos;
}

void check(const Json& object, const std::string& path) {
  if (ConfigValues(object).experts_are_off()) return;
  for (const auto& [key, value] : object.items()) {
    if (is_of_drafts(key) || is_of_another_model(key)) continue;
    const std::string name = path + key;
    if (value.is_object() || (value.is_array() && std::ranges::any_of(value, &Json::is_object))) {
      check(value, name + ".");
    } else if (looks_like_number_of_experts(name, key) && is_above_one(value)) {
      throw ArgumentError(
          fmt::format("\"{}\" is {}, which looks like a number of experts and is not understood: "
                      "name the MoE layers, top_k and experts with ModelShape's constructor",
                      name, shown(value)));
    }
  }
}

}  // namespace

void refuse_unknown_experts(const Json& root) { check(root, ""); }

}  // namespace moetap::detail
