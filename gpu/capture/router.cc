#include <moetap/error.h>
#include <moetap/topk_router.h>

#include <fmt/format.h>

#include <algorithm>

#include "gpu/internal/router_kernel.h"

namespace moetap {

MOETAP_DEFINE_KERNEL(RouterKernel);
MOETAP_DEFINE_KERNEL(CapturingRouterKernel);

namespace {

std::int64_t blocks_for(std::int64_t num_tokens) {
  return (num_tokens + RouterGeometry::kTokens - 1) / RouterGeometry::kTokens;
}

void require(bool good, const char* field, int value, const std::string& allowed) {
  if (!good) {
    throw ArgumentError(fmt::format("router: {} is {}; allowed are {}", field, value, allowed));
  }
}

}  // namespace

void RouterOptions::validate() const {
  require(num_experts >= 1 && num_experts <= kMaxExperts, "num_experts", num_experts,
          fmt::format("1 to {}", kMaxExperts));
  require(num_groups >= 1 && num_groups <= kMaxGroups && num_experts % num_groups == 0,
          "num_groups", num_groups,
          fmt::format("divisors of the {} experts up to {}", num_experts, kMaxGroups));
  require(top_groups >= 1 && top_groups <= num_groups, "top_groups", top_groups,
          fmt::format("1 to the {} groups", num_groups));
  const int choices = num_experts / num_groups * top_groups;
  require(top_k >= 1 && top_k <= choices, "top_k", top_k,
          fmt::format("1 to the {} experts of {} groups", choices, top_groups));
}

void launch_router(const RouterOptions& options, const RouterBuffers& buffers, Stream& stream) {
  options.validate();
  stream.launch(RouterKernel{{}, {buffers, options}}, blocks_for(buffers.num_tokens));
}

// At least one block, which stamps the layer.
void launch_router(const RouterOptions& options, const RouterBuffers& buffers,
                   const RouteSink& sink, Stream& stream) {
  options.validate();
  if (sink.top_k != options.top_k) {
    throw ArgumentError(fmt::format("router: top_k is {}, but the sink takes {} picks a token",
                                    options.top_k, sink.top_k));
  }
  stream.launch(CapturingRouterKernel{{}, {buffers, options}, sink},
                std::max<std::int64_t>(1, blocks_for(buffers.num_tokens)));
}

}  // namespace moetap
