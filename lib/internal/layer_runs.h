// The positions of a row's MoE layers in an array of all hidden layers (H31, H33).
#pragma once

#include <moetap/shape.h>

#include <cstddef>
#include <vector>

namespace moetap::detail {

// MoE layers that are consecutive in the model, and so in both row and array. The row's elements
// from `row` on are the array's elements from `array` on.
struct LayerRun {
  std::size_t array = 0;
  std::size_t row = 0;
  std::size_t count = 0;
};

// The runs of an array with all hidden layers, layer i at index i; or of one with only the MoE
// layers, which is a single run.
inline std::vector<LayerRun> layer_runs(const ModelShape& shape, bool all_hidden) {
  const auto top_k = static_cast<std::size_t>(shape.top_k());
  std::vector<LayerRun> runs;
  std::size_t row = 0;
  for (const int layer : shape.moe_layers()) {
    const std::size_t array = all_hidden ? static_cast<std::size_t>(layer) * top_k : row;
    if (!runs.empty() && runs.back().array + runs.back().count == array) {
      runs.back().count += top_k;
    } else {
      runs.push_back({array, row, top_k});
    }
    row += top_k;
  }
  return runs;
}

// The number of elements per token in such an array.
inline std::size_t array_row_size(const ModelShape& shape, bool all_hidden) {
  return static_cast<std::size_t>(all_hidden ? shape.num_hidden_layers() : shape.num_layers()) *
         static_cast<std::size_t>(shape.top_k());
}

}  // namespace moetap::detail
