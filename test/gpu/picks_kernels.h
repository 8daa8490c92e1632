// Stand-ins for an engine's own kernels: they have a router's picks and put them where they are
// told.
#pragma once

#include <moetap/route_sink.h>

#include <cstdint>

namespace moetap::test {

// A router that captures its own picks, rows of `columns` ids of which top_k are routes. The last
// row comes first, so that what is put past a row's end is not put right by the next row.
struct SinkPicks {
  const std::int32_t* topk_ids;
  std::int64_t rows;
  std::int64_t columns;
  RouteSink sink;
  WeightType weight_type = WeightType::none;
  const void* weights = nullptr;  // [rows][top_k]
  int first_k = 0;                // picks before the routes (below 0) and after them, of expert 0
  int shared = 0;
  std::int64_t left_out = -1;  // the last route of this row is not put

  MOETAP_DEVICE void operator()(Block block) const {
    const RouteWriter routes(sink);
    if (block.index == 0 && block.lane == 0) routes.begin(rows, weight_type);
    const int picks = sink.top_k + shared - first_k;
    for (std::int64_t i = rows * picks - 1 - block.lane; i >= 0; i -= block.lanes) {
      const std::int64_t row = i / picks;
      const int k = first_k + static_cast<int>(i % picks);
      const bool route = k >= 0 && k < sink.top_k;
      if (row == left_out && k == sink.top_k - 1) continue;
      put(routes, row, k, route ? topk_ids[row * columns + k] : 0,
          route ? row * sink.top_k + k : 0);
    }
  }

 private:
  MOETAP_DEVICE void put(const RouteWriter& routes, std::int64_t row, int k, std::int32_t id,
                         std::int64_t at) const {
    if (weights == nullptr || weight_type == WeightType::none) {
      routes.put(row, k, id);
    } else if (weight_type == WeightType::float32) {
      routes.put(row, k, id, static_cast<const float*>(weights)[at]);
    } else {
      routes.put(row, k, id, static_cast<const BFloat16*>(weights)[at]);
    }
  }
};

// A fused MoE kernel with a routing output.
struct OutputPicks {
  const std::int32_t* topk_ids;
  std::int64_t rows;
  std::int64_t top_k;
  std::int16_t* output;

  MOETAP_DEVICE void operator()(Block block) const {
    for (std::int64_t i = block.lane; i < rows * top_k; i += block.lanes) {
      output[i] = static_cast<std::int16_t>(topk_ids[i]);
    }
  }
};

}  // namespace moetap::test
