#include <moetap/error.h>
#include <moetap/shape.h>

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>

#include "injection.h"
#include "text.h"

namespace moetap {
namespace {

void check_layers(const std::vector<int>& layers) {
  if (layers.empty()) {
    throw ArgumentError("the model has no MoE layers; routes exist only for a mixture of experts");
  }
  if (layers.size() > ModelShape::kMaxLayers) {
    throw ArgumentError(fmt::format("{} MoE layers; at most {} are allowed", layers.size(),
                                    ModelShape::kMaxLayers));
  }
  if (layers.front() < 0) {
    throw ArgumentError(fmt::format("MoE layer id {} is negative; ids count from 0", layers[0]));
  }
  const auto disorder = std::adjacent_find(layers.begin(), layers.end(), std::greater_equal<>());
  if (disorder != layers.end()) {
    throw ArgumentError(fmt::format("MoE layer id {} after {}; list each once, ascending",
                                    disorder[1], disorder[0]));
  }
}

}  // namespace

IdType narrow_type(std::int64_t num_experts) {
  if (num_experts < 1 || num_experts > ModelShape::kMaxExperts) {
    throw ArgumentError(
        fmt::format("{} experts; allowed are 1 to {}", num_experts, ModelShape::kMaxExperts));
  }
  return num_experts <= 256 || MOETAP_OFF("H21 a narrow type with room") ? IdType::uint8
                                                                         : IdType::uint16;
}

ModelShape::ModelShape(std::vector<int> moe_layers, int top_k, int num_experts)
    : moe_layers_(std::move(moe_layers)),
      top_k_(top_k),
      num_experts_(num_experts),
      id_type_(narrow_type(num_experts)) {
  check_layers(moe_layers_);
  if (top_k < 1 || top_k > num_experts) {
    throw ArgumentError(
        fmt::format("top_k is {}; allowed are 1 to the number of experts, {}", top_k, num_experts));
  }
}

ModelShape ModelShape::with_weights(WeightType type) const {
  if (type > WeightType::bfloat16) {
    throw ArgumentError(fmt::format(
        "weight type {}; allowed are none (0), float32 (1), bfloat16 (2)", static_cast<int>(type)));
  }
  ModelShape shape = *this;
  shape.weight_type_ = type;
  return shape;
}

ModelShape ModelShape::uniform(int num_layers, int top_k, int num_experts) {
  if (num_layers < 1 || num_layers > kMaxLayers) {
    throw ArgumentError(fmt::format("{} MoE layers; allowed are 1 to {}", num_layers, kMaxLayers));
  }
  std::vector<int> layers(static_cast<std::size_t>(num_layers));
  std::iota(layers.begin(), layers.end(), 0);
  return ModelShape(std::move(layers), top_k, num_experts);
}

int ModelShape::layer_index(int model_layer) const {
  const auto found = std::lower_bound(moe_layers_.begin(), moe_layers_.end(), model_layer);
  if (found == moe_layers_.end() || *found != model_layer) {
    throw RangeError(fmt::format("layer {} has no router; the model's MoE layers are {}",
                                 model_layer, detail::join_ranges(moe_layers_)));
  }
  return static_cast<int>(found - moe_layers_.begin());
}

std::string ModelShape::to_string() const {
  std::string text =
      fmt::format("{} layers x top-{} of {} experts", num_layers(), top_k_, num_experts_);
  if (weight_type_ != WeightType::none) {
    fmt::format_to(std::back_inserter(text), " with {} weights", weight_type_name(weight_type_));
  }
  return text;
}

}  // namespace moetap
