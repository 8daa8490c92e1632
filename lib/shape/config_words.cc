#include "lib/shape/config_words.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cctype>

#include "lib/internal/text.h"

namespace moetap::detail {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kRouter = "moe";
constexpr std::string_view kPlainMlps[] = {"dense", "mlp"};
// In addition to all words that end in "attention".
constexpr std::string_view kAttention[] = {"conv",
                                           "delta_net",
                                           "gated_delta_net",
                                           "gdn",
                                           "hybrid",
                                           "hybrid_sliding",
                                           "kda",
                                           "mamba",
                                           "mamba1",
                                           "mamba2",
                                           "minimax_m3_sparse",
                                           "mla",
                                           "recurrent",
                                           "swa"};
constexpr std::string_view kMlpParts[] = {"moe", "mlp", "expert", "ffn"};

// Parts of the names of objects that describe other models, or how weights are stored.
constexpr std::string_view kOtherObjects[] = {
    "vision", "visual",    "vit",     "image",     "audio",          "speech",      "talker",
    "tts",    "2wav",      "codec",   "encoder",   "code_predictor", "draft",       "eagle",
    "specul", "projector", "aligner", "connector", "quant",          "compression", "vae"};
bool is_attention(std::string_view word) {
  if (is_one_of(word, kAttention)) return true;
  return word.ends_with("attention") &&
         std::ranges::none_of(kMlpParts, [&](auto mlp) { return word.find(mlp) != word.npos; });
}

}  // namespace

bool is_one_of(std::string_view word, std::span<const std::string_view> words) {
  return std::ranges::find(words, word) != words.end();
}

bool has_one_of(std::string_view text, std::span<const std::string_view> words) {
  return std::ranges::any_of(words, [&](auto word) { return text.find(word) != text.npos; });
}

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

bool is_of_another_model(std::string_view key) {
  return has_one_of(lower(std::string(key)), kOtherObjects);
}

bool is_of_drafts(std::string_view key) { return key.starts_with("mtp"); }

std::optional<LayerWord> layer_word(const Json& word) {
  if (!word.is_string()) return std::nullopt;
  const auto& text = word.get_ref<const std::string&>();
  if (text == kRouter) return LayerWord::router;
  if (is_one_of(text, kPlainMlps)) return LayerWord::plain_mlp;
  if (is_attention(text)) return LayerWord::attention;
  return std::nullopt;
}

bool is_list_of_attention(const Json& value) {
  return value.is_array() && std::ranges::all_of(value, [](const Json& word) {
           return layer_word(word) == LayerWord::attention;
         });
}

std::string known_layer_words() {
  return fmt::format("\"{}\", {}, {} and what ends in \"attention\"", kRouter, join(kPlainMlps),
                     join(kAttention));
}

}  // namespace moetap::detail
