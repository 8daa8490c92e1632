// Checks what accept() is given: which tokens of a step were accepted.
#pragma once

#include <moetap/types.h>

#include <cstdint>
#include <span>

#include "lib/internal/export.h"

namespace moetap::detail {

// How many tokens at these positions are accepted, of a request that has `num_tokens` now. The last
// of those had no forward pass.
MOETAP_INTERNAL_API std::int64_t count_standing(TokenRange positions, std::int64_t num_tokens);

// ArgumentError unless each of the `count` accepted tokens is given, and none twice, and those at
// positions below `drafts`, which are no drafts, are in their places. RangeError for a token that
// the step did not compute.
MOETAP_INTERNAL_API void check_accepted(Step step, RequestId request, TokenRange positions,
                                        std::int64_t drafts, std::int64_t count,
                                        std::span<const std::int64_t> accepted);

// How many tokens, counted from the first, are accepted for their own positions.
MOETAP_INTERNAL_API std::int64_t count_in_place(std::span<const std::int64_t> accepted);

// StateError if a token is accepted for another position than its own; `why` says why none can be.
MOETAP_INTERNAL_API void check_in_place(Step step, RequestId request,
                                        std::span<const std::int64_t> accepted, const char* why);

}  // namespace moetap::detail
