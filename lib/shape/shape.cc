#include <moetap/error.h>
#include <moetap/shape.h>

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>

#include "lib/internal/injection.h"
#include "lib/internal/text.h"

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
  if (layers.back() >= ModelShape::kMaxLayers) {
    throw ArgumentError(fmt::format("MoE layer id {}; allowed are 0 to {}", layers.back(),
                                    ModelShape::kMaxLayers - 1));
  }
}

int checked_hidden_layers(int num_hidden_layers, int last_moe_layer) {
  if (num_hidden_layers <= last_moe_layer || num_hidden_layers > ModelShape::kMaxLayers) {
    throw ArgumentError(
        fmt::format("num_hidden_layers is {}; with MoE layer {} it must be {} to {}: count dense "
                    "layers too",
                    num_hidden_layers, last_moe_layer, last_moe_layer + 1, ModelShape::kMaxLayers));
  }
  return num_hidden_layers;
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

ModelShape::ModelShape(std::vector<int> moe_layers, int top_k, int num_experts,
                       std::optional<int> num_hidden_layers)
    : moe_layers_(std::move(moe_layers)),
      top_k_(top_k),
      num_experts_(num_experts),
      id_type_(narrow_type(num_experts)) {
  check_layers(moe_layers_);
  num_hidden_layers_ =
      checked_hidden_layers(num_hidden_layers.value_or(moe_layers_.back() + 1), moe_layers_.back());
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

ModelShape ModelShape::with_repeated_experts(bool repeats) const {
  ModelShape shape = *this;
  shape.repeats_experts_ = repeats;
  return shape;
}

ModelShape ModelShape::with_layers(std::vector<int> moe_layers) const {
  check_layers(moe_layers);
  std::vector<int> others;
  std::ranges::set_difference(moe_layers, moe_layers_, std::back_inserter(others));
  if (!others.empty()) {
    throw ArgumentError(fmt::format("layers {} have no router; the model's MoE layers are {}",
                                    detail::join_ranges(others), detail::join_ranges(moe_layers_)));
  }
  ModelShape shape = *this;
  shape.moe_layers_ = std::move(moe_layers);
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
  if (repeats_experts_) text += " that may repeat";
  if (weight_type_ != WeightType::none) {
    fmt::format_to(std::back_inserter(text), " with {} weights", weight_type_name(weight_type_));
  }
  return text;
}

std::string ModelShape::difference(const ModelShape& other) const {
  std::string text;
  const auto compare = [&](std::string_view what, const auto& ours, const auto& theirs) {
    if (ours == theirs) return;
    fmt::format_to(std::back_inserter(text), "{}{} {} and {}", text.empty() ? "" : "; ", what, ours,
                   theirs);
  };
  const auto repeats = [](const ModelShape& shape) {
    return shape.repeats_experts_ ? "allowed" : "refused";
  };
  compare("MoE layers", detail::join_ranges(moe_layers_), detail::join_ranges(other.moe_layers_));
  compare("num_hidden_layers", num_hidden_layers_, other.num_hidden_layers_);
  compare("top_k", top_k_, other.top_k_);
  compare("num_experts", num_experts_, other.num_experts_);
  compare("repeated experts", std::string_view(repeats(*this)), std::string_view(repeats(other)));
  compare("weights", weight_type_name(weight_type_), weight_type_name(other.weight_type_));
  return text;
}

}  // namespace moetap
