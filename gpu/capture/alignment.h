// Where a kernel may find a router's picks.
#pragma once

#include <moetap/error.h>
#include <moetap/step.h>
#include <moetap/topk_ids.h>

#include <fmt/format.h>

#include <cstdint>

namespace moetap {

// ArgumentError unless ids and weights lie at multiples of their elements' sizes: a GPU that loads
// from any other address ends its context. whose() says whose they are.
template <class Whose>
void require_aligned(const TopkIds& picks, Whose&& whose) {
  const auto require = [&](const void* data, std::size_t element, const char* what) {
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    if (element == 0 || address % element == 0) return;
    throw ArgumentError(
        fmt::format("{}: {} at {:#x}, elements of {} bytes: the address must be a multiple of that",
                    whose(), what, address, element));
  };
  require(picks.data, id_bytes(picks.type), "topk_ids");
  require(picks.weights.data, weight_bytes(picks.weights.type), "weights");
}

}  // namespace moetap
