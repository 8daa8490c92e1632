// The words that configurations have for what a layer is.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace moetap::detail {

bool is_one_of(std::string_view word, std::span<const std::string_view> words);
// Whether any of them is a part of it.
bool has_one_of(std::string_view text, std::span<const std::string_view> words);
std::string lower(std::string text);

// Of an object that describes another model (vision, audio, drafts), or how weights are kept.
bool is_of_another_model(std::string_view key);
// Of what a configuration says of the layers of a model of drafts.
bool is_of_drafts(std::string_view key);

enum class LayerWord {
  attention,  // or what stands in its place; it says nothing of the MLP after it
  plain_mlp,  // in hybrid models, whose blocks are one or the other
  router,
};

// Of an entry of "layer_types" or "layers_block_type"; nothing for a word that is not known.
std::optional<LayerWord> layer_word(const nlohmann::json& word);

// A list with words for kinds of attention only.
bool is_list_of_attention(const nlohmann::json& value);

// For messages: the words of layer_word().
std::string known_layer_words();

}  // namespace moetap::detail
