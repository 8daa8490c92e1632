// What a layer's weights must be.
#pragma once

#include <moetap/shape.h>
#include <moetap/step.h>

namespace moetap::detail {

// ArgumentError that names the layer and both types unless the weights that come with a layer's
// picks are those that rows of this shape hold: of its type, or float32 where that is bfloat16.
void require_weights(const ModelShape& shape, int model_layer, const TopkIds& picks);

}  // namespace moetap::detail
