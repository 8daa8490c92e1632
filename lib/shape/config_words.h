// The words that configurations use for the kind of a layer.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace moetap::detail {

bool is_one_of(std::string_view word, std::span<const std::string_view> words);
// Whether the text contains any of the parts.
bool has_one_of(std::string_view text, std::span<const std::string_view> words);
std::string lower(std::string text);

// Whether a name is of an object that describes another model (vision, audio, drafts), or how
// weights are stored.
bool is_of_another_model(std::string_view key);
// Whether a name is about the layers of a draft model.
bool is_of_drafts(std::string_view key);

enum class LayerWord {
  attention,  // or its replacement; says nothing about the MLP after it
  plain_mlp,  // in hybrid models, where each block is one of these
  router,
};

// The kind for an entry of "layer_types" or "layers_block_type"; nothing for an unknown word.
std::optional<LayerWord> layer_word(const nlohmann::json& word);

// Whether a list has only words for kinds of attention.
bool is_list_of_attention(const nlohmann::json& value);

// For messages: the words of layer_word().
std::string known_layer_words();

}  // namespace moetap::detail
