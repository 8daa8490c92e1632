// Where an array of all hidden layers has a row's MoE layers (H31, H33).
#pragma once

#include <moetap/shape.h>

#include <cstddef>
#include <vector>

namespace moetap::detail {

// MoE layers that follow each other in the model, and so in both. In elements: a row's from `row`
// on are an array's from `array` on.
struct LayerRun {
  std::size_t array = 0;
  std::size_t row = 0;
  std::size_t count = 0;
};

// Of an array row of all hidden layers, layer i at index i; or of the MoE layers alone, which is
// one run.
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

// Elements of such an array row.
inline std::size_t array_row_size(const ModelShape& shape, bool all_hidden) {
  return static_cast<std::size_t>(all_hidden ? shape.num_hidden_layers() : shape.num_layers()) *
         static_cast<std::size_t>(shape.top_k());
}

}  // namespace moetap::detail
