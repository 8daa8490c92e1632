// A router, computed plainly in double precision.
#pragma once

#include <moetap/topk_router.h>

#include <cstdint>
#include <span>
#include <vector>

namespace moetap::test {

struct RoutedToken {
  std::vector<std::int32_t> ids;  // best first; -1 where no score is a number
  std::vector<double> weights;
  // Whether rounding to float may decide between two choices. Equal ones are none of these: the
  // lower id wins.
  bool close = false;
};

// One token's picks. `bias`: of each expert, or empty.
RoutedToken route_plainly(const RouterOptions& options, std::span<const float> logits,
                          std::span<const float> bias);

}  // namespace moetap::test
