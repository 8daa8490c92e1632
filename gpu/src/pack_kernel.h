// The kernel that makes one rank's part of topk_ids ready to be gathered.
#pragma once

#include <moetap/kernel.h>

#include <cstdint>
#include <limits>

namespace moetap {

// [rows][top_k] int32, without gaps, from the first top_k columns of any type's rows. A block takes
// kRows of them.
template <class T>
struct PackKernel {
  static constexpr std::int64_t kRows = 64;

  const T* from;
  std::int64_t row_stride;
  std::int32_t* to;
  std::int64_t rows;
  std::int32_t top_k;

  MOETAP_DEVICE void operator()(Block block) const {
    const std::int64_t first = block.index * kRows;
    const std::int64_t left = rows - first;
    const std::int64_t ids = (left < kRows ? left : kRows) * top_k;
    for (std::int64_t i = block.lane; i < ids; i += block.lanes) {
      const std::int64_t row = first + i / top_k;
      to[first * top_k + i] = as_int32(from[row * row_stride + i % top_k]);
    }
  }

 private:
  // What int32 cannot hold must not come back as some expert's id.
  MOETAP_DEVICE static std::int32_t as_int32(T id) {
    const auto narrow = static_cast<std::int32_t>(id);
    return static_cast<T>(narrow) == id ? narrow : kNoId;
  }
  static constexpr std::int32_t kNoId = std::numeric_limits<std::int32_t>::min();
};

}  // namespace moetap
