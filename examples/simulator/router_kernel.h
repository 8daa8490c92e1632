// The simulated model's router as a kernel, which writes its picks as topk_ids.
#pragma once

#include <cstdint>

#include "examples/simulator/router.h"

namespace demo {

// One MoE layer's router for `num_tokens` tokens.
struct RouterKernel {
  static constexpr std::int64_t kTile = 64;  // tokens per block

  Router router;
  const Token* tokens;
  const std::int32_t* positions;
  std::int64_t num_tokens;
  std::int32_t* topk_ids;
  std::int64_t row_stride;  // of both
  int layer;
  moetap::WeightType weight_type = moetap::WeightType::none;
  void* weights = nullptr;  // of these

  MOETAP_DEVICE void operator()(moetap::Block block) const {
    const std::int64_t first = block.index * kTile;
    const std::int64_t last = first + kTile < num_tokens ? first + kTile : num_tokens;
    for (std::int64_t i = first + block.lane; i < last; i += block.lanes) {
      router(tokens[i], positions[i], layer, topk_ids + i * row_stride);
      if (weight_type == moetap::WeightType::float32) {
        weigh(i, static_cast<std::uint32_t*>(weights), 0);
      } else if (weight_type == moetap::WeightType::bfloat16) {
        weigh(i, static_cast<std::uint16_t*>(weights), 16);
      }
    }
  }

 private:
  template <class Bits>
  MOETAP_DEVICE void weigh(std::int64_t i, Bits* to, int shift) const {
    for (int k = 0; k < router.top_k(); ++k) {
      to[i * row_stride + k] =
          static_cast<Bits>(router.weight(tokens[i], positions[i], layer, k) >> shift);
    }
  }
};

}  // namespace demo
