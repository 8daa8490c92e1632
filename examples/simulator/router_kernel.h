// The pretended model's router as a kernel, which writes its picks as topk_ids.
#pragma once

#include <cstdint>

#include "router.h"

namespace demo {

// One MoE layer's router for `num_tokens` tokens.
struct RouterKernel {
  static constexpr std::int64_t kTile = 64;  // tokens a block

  Router router;
  const Token* tokens;
  const std::int32_t* positions;
  std::int64_t num_tokens;
  std::int32_t* topk_ids;
  std::int64_t row_stride;
  int layer;

  MOETAP_DEVICE void operator()(moetap::Block block) const {
    const std::int64_t first = block.index * kTile;
    const std::int64_t last = first + kTile < num_tokens ? first + kTile : num_tokens;
    for (std::int64_t i = first + block.lane; i < last; i += block.lanes) {
      router(tokens[i], positions[i], layer, topk_ids + i * row_stride);
    }
  }
};

}  // namespace demo
