// Checks that kernels can read a router's picks.
#pragma once

#include <moetap/topk_ids.h>
#include <moetap/weight_type.h>

#include <cstdint>
#include <optional>
#include <string>

namespace moetap::detail {

// Why kernels cannot read `rows` rows of these picks, for top_k ids with weights of type `wanted`
// (given float32 may become bfloat16), or nothing. Reasons: too few columns, a stride below them,
// null, an address that a GPU cannot load from, other weights. Allocates only if there is a reason.
std::optional<std::string> why_unreadable(const TopkIds& picks, std::int64_t rows, int top_k,
                                          WeightType wanted);

}  // namespace moetap::detail
