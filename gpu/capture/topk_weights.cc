#include "gpu/capture/topk_weights.h"

#include <moetap/error.h>
#include <moetap/topk_ids.h>

#include <fmt/format.h>

namespace moetap::detail {

std::string weight_type_text(WeightType type) {
  const std::string name(weight_type_name(type));
  return type <= WeightType::bfloat16 ? name : fmt::format("{} ({})", name, static_cast<int>(type));
}

bool can_become(WeightType given, WeightType wanted) {
  return given == wanted || (given == WeightType::float32 && wanted == WeightType::bfloat16);
}

void require_weights(const ModelShape& shape, int model_layer, const TopkIds& picks) {
  const WeightType wanted = shape.weight_type();
  const TopkWeights& weights = picks.weights;
  if (!can_become(weights.type, wanted)) {
    throw ArgumentError(fmt::format(
        "layer {}: topk_ids with weights of type {}, but rows are of {}; give those that "
        "ModelShape::with_weights() promised, or a shape without them to both ends",
        model_layer, weight_type_text(weights.type), shape.to_string()));
  }
  if (wanted == WeightType::none) return;
  if (weights.row_stride < shape.top_k()) {
    throw ArgumentError(
        fmt::format("layer {}: weights with a row stride of {} elements, below top_k {}",
                    model_layer, weights.row_stride, shape.top_k()));
  }
  if (weights.data == nullptr && picks.rows > 0) {
    throw ArgumentError(
        fmt::format("layer {}: weights are null, but have {} rows", model_layer, picks.rows));
  }
}

}  // namespace moetap::detail
