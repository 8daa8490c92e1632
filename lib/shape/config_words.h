// The words that configurations have for what a layer is.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace moetap::detail {

bool is_one_of(std::string_view word, std::span<const std::string_view> words);

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
