// The endpoint of a benchmark, with a name of this process's own.
#pragma once

#include <moetap/endpoint.h>

#include <fmt/format.h>
#include <unistd.h>

#include "bench/workload.h"

namespace moetap::bench {

inline Endpoint endpoint(const ModelShape& shape, std::int64_t num_slots = kSlots) {
  return {.instance = fmt::format("bench-{}", getpid()),
          .shape = shape,
          .num_slots = num_slots,
          .max_tokens = kMaxTokens};
}

}  // namespace moetap::bench
