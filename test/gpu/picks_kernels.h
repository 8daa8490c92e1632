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

  MOETAP_DEVICE void operator()(Block block) const {
    const RouteWriter routes(sink);
    if (block.index == 0 && block.lane == 0) routes.begin(rows);
    for (std::int64_t i = block.lane; i < rows * sink.top_k; i += block.lanes) {
      const std::int64_t row = i / sink.top_k;
      const auto k = static_cast<int>(i % sink.top_k);
      routes.put(row, k, topk_ids[row * columns + k]);
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
