// Stand-ins for an engine's own kernels: they have a router's picks and put them where they are
// told.
#pragma once

#include <moetap/route_sink.h>

#include <cstdint>

namespace moetap::test {

// A router that captures its own picks, rows of `columns` ids of which top_k are routes.
struct SinkPicks {
  const std::int32_t* topk_ids;
  std::int64_t rows;
  std::int64_t columns;
  RouteSink sink;
  WeightType weight_type = WeightType::none;
  const void* weights = nullptr;  // [rows][top_k]

  MOETAP_DEVICE void operator()(Block block) const {
    const RouteWriter routes(sink);
    if (block.index == 0 && block.lane == 0) routes.begin(rows, weight_type);
    for (std::int64_t i = block.lane; i < rows * sink.top_k; i += block.lanes) {
      const std::int64_t row = i / sink.top_k;
      const auto k = static_cast<int>(i % sink.top_k);
      routes.put(row, k, topk_ids[row * columns + k]);
      if (weights != nullptr) put_weight(routes, row, k, i);
    }
  }

 private:
  MOETAP_DEVICE void put_weight(const RouteWriter& routes, std::int64_t row, int k,
                                std::int64_t at) const {
    if (weight_type == WeightType::float32) {
      routes.put_weight(row, k, static_cast<const float*>(weights)[at]);
    } else {
      routes.put_bfloat16_weight(row, k, static_cast<const std::uint16_t*>(weights)[at]);
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
