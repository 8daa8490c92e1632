// The kernel that prepares one rank's part of topk_ids for the gather.
#pragma once

#include <moetap/kernel.h>
#include <moetap/step.h>
#include <moetap/topk_ids.h>

#include <cstdint>
#include <limits>

namespace moetap {

// Writes int32 [rows][top_k] without gaps, from the first top_k columns of rows of any type. A
// block takes kRows rows. Weights, if any, follow a row's ids as float32 bits.
template <class T>
struct PackKernel {
  static constexpr std::int64_t kRows = 64;

  const T* from;
  std::int64_t row_stride;
  std::int32_t* to;
  std::int64_t rows;
  std::int32_t top_k;
  TopkWeights weights;

  MOETAP_DEVICE void operator()(Block block) const {
    const std::int64_t first = block.index * kRows;
    const std::int64_t left = rows - first;
    const std::int64_t ids = (left < kRows ? left : kRows) * top_k;
    for (std::int64_t i = block.lane; i < ids; i += block.lanes) {
      const std::int64_t row = first + i / top_k;
      const std::int64_t k = i % top_k;
      if (weights.type == WeightType::none) {
        to[row * top_k + k] = as_int32(from[row * row_stride + k]);
      } else {
        to[row * 2 * top_k + k] = as_int32(from[row * row_stride + k]);
        to[row * 2 * top_k + top_k + k] = bits(row * weights.row_stride + k);
      }
    }
  }

 private:
  // An id that does not fit int32 must not become a valid expert id.
  MOETAP_DEVICE static std::int32_t as_int32(T id) {
    const auto narrow = static_cast<std::int32_t>(id);
    return static_cast<T>(narrow) == id ? narrow : kNoId;
  }
  // A bfloat16 is the upper half of the float32 with the same value.
  MOETAP_DEVICE std::int32_t bits(std::int64_t at) const {
    if (weights.type == WeightType::float32)
      return static_cast<const std::int32_t*>(weights.data)[at];
    const std::uint32_t upper = static_cast<const std::uint16_t*>(weights.data)[at];
    return static_cast<std::int32_t>(upper << 16);
  }
  static constexpr std::int32_t kNoId = std::numeric_limits<std::int32_t>::min();
};

}  // namespace moetap
