// Runs a kernel over plain memory: every block, its lanes backwards, since lanes have no order.
#pragma once

#include <moetap/kernel.h>
#include <moetap/route_sink.h>
#include <moetap/transport.h>

#include <cstdint>
#include <vector>

#include "gpu/internal/device_cache.h"

namespace moetap::test {

inline constexpr int kLaneCounts[] = {1, 3, 32, 128};

template <class Kernel>
void run_kernel(const Kernel& kernel, std::int64_t blocks, int lanes) {
  for (std::int64_t block = 0; block < blocks; ++block) {
    for (int lane = lanes - 1; lane >= 0; --lane) {
      run_on_host<Kernel>(&kernel, Block{block, lane, lanes});
    }
  }
}

// Of one layer, 3, whose rows begin with the first.
inline RouteSink sink_over(DeviceStep& step, std::uint64_t& captured,
                           std::vector<std::uint64_t>& missing_step,
                           std::vector<std::uint16_t>& routes, int top_k, int num_experts) {
  return {.step = &step,
          .captured = &captured,
          .missing_step = missing_step.data(),
          .routes = routes.data(),
          .first_row = 0,
          .end_row = DeviceCache::kAllRows,
          .layer = 3,
          .top_k = top_k,
          .num_experts = static_cast<std::uint32_t>(num_experts)};
}

}  // namespace moetap::test
