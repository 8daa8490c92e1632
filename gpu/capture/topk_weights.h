// What a layer's weights must be.
#pragma once

#include <moetap/shape.h>
#include <moetap/step.h>
#include <moetap/topk_ids.h>

#include <string>

namespace moetap::detail {

// ArgumentError that names the layer and both types unless the weights that come with a layer's
// picks are those that rows of this shape hold: of its type, or float32 where that is bfloat16.
void require_weights(const ModelShape& shape, int model_layer, const TopkIds& picks);

// Whether rows that hold `wanted` can be made of weights of type `given`; on the device: becomes().
bool can_become(WeightType given, WeightType wanted);

// "float32"; "unknown (7)" for a value that is no type.
std::string weight_type_text(WeightType type);

}  // namespace moetap::detail
