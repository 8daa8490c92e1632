// What one row looks like for a model.
#pragma once

#include <moetap/export.h>
#include <moetap/types.h>
#include <moetap/weight_type.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace moetap {

// The narrowest type that can represent every expert id: uint8 up to 256 experts, uint16 up to
// 65,536. ArgumentError for fewer than 1 or more than 65,536 experts.
MOETAP_API IdType narrow_type(std::int64_t num_experts);

// The MoE layers of a model and what its router picks at each. Immutable; equal shapes are
// interchangeable. The constructor throws ArgumentError, which names the value, for anything that
// cannot be a MoE model: no layers, top_k of 0 or above num_experts, unordered layer ids, ….
class MOETAP_API ModelShape {
 public:
  static constexpr int kMaxLayers = 1024;  // hidden layers; layer ids are below it
  static constexpr int kMaxExperts = 65536;

  // moe_layers: ids of the layers that have a router, in ascending order; rows have the layers in
  // this order. num_hidden_layers: of the whole model, including dense layers. By default the last
  // MoE layer is the model's last layer.
  ModelShape(std::vector<int> moe_layers, int top_k, int num_experts,
             std::optional<int> num_hidden_layers = {});

  // The same model with the router's weights captured beside the ids. WeightType::none: without.
  ModelShape with_weights(WeightType type) const;

  // The same model, declared to pick an expert twice for a token on purpose (zero-computation or
  // hashed experts). Without this declaration, repeated ids in a layer are refused. A top-k router
  // picks distinct experts, whereas unwritten memory repeats an id.
  ModelShape with_repeated_experts(bool repeats = true) const;

  // The same model with only these MoE layers in a row, e.g. those of a pipeline stage.
  // ArgumentError for a list that is empty or unordered, or names a layer without a router.
  ModelShape with_layers(std::vector<int> moe_layers) const;

  // MoE layers 0 … num_layers-1, and no others.
  static ModelShape uniform(int num_layers, int top_k, int num_experts);

  // Reads a Hugging Face config.json or Mistral params.json (its text, or a file), with the key
  // names that model families use. The model may be under "text_config". ArgumentError that names
  // the key for anything that is not understood for certain: a dense model (at most one expert), a
  // key that may be a layer schedule under an unknown name, layers that differ in top_k or experts.
  static ModelShape from_config(std::string_view json);
  static ModelShape from_config_file(const std::filesystem::path& path);

  // A published model by name, e.g. "qwen3-30b-a3b". ArgumentError that lists the known names if
  // this one is not known.
  static ModelShape known(std::string_view name);
  static std::vector<std::string> known_names();

  const std::vector<int>& moe_layers() const { return moe_layers_; }
  int num_layers() const { return static_cast<int>(moe_layers_.size()); }
  int num_hidden_layers() const { return num_hidden_layers_; }  // including dense layers
  int top_k() const { return top_k_; }
  int num_experts() const { return num_experts_; }
  IdType id_type() const { return id_type_; }
  WeightType weight_type() const { return weight_type_; }    // none by default, see with_weights()
  bool repeats_experts() const { return repeats_experts_; }  // see with_repeated_experts()

  // A row is narrow ids, [num_layers][top_k]. Weights, if any, are [num_layers][top_k] at
  // weights_offset(), in bytes: the next multiple of their size. The bytes between are 0. The row's
  // size is a multiple of a weight's size, so all weights in an array of rows are aligned.
  std::size_t row_ids() const { return moe_layers_.size() * static_cast<std::size_t>(top_k_); }
  std::size_t ids_bytes() const { return row_ids() * id_bytes(id_type_); }
  std::size_t weights_offset() const {
    const std::size_t unit = weight_type_ == WeightType::none ? 1 : weight_bytes(weight_type_);
    return (ids_bytes() + unit - 1) / unit * unit;
  }
  std::size_t row_bytes() const {
    return weights_offset() + row_ids() * weight_bytes(weight_type_);
  }

  // The index in a row of a model's layer id. RangeError if that layer has no router.
  int layer_index(int model_layer) const;

  // "48 layers x top-8 of 128 experts", followed by " that may repeat" and " with float32 weights"
  // where these apply.
  std::string to_string() const;

  // The differences, for messages: "MoE layers 1, 2 and 2, 3; top_k 8 and 4". Empty if the shapes
  // are equal.
  std::string difference(const ModelShape& other) const;

  bool operator==(const ModelShape&) const = default;

 private:
  std::vector<int> moe_layers_;
  int top_k_;
  int num_experts_;
  int num_hidden_layers_;
  bool repeats_experts_ = false;
  IdType id_type_;
  WeightType weight_type_ = WeightType::none;
};

}  // namespace moetap
