// Which picks a layer can have for one token: one rule for host and device code. C++17, so that an
// engine's CUDA code can include it.
#pragma once

#include <moetap/device_code.h>

#include <cstdint>

namespace moetap {

// Whether ids[0 … top_k) contains the id of an expert twice. Other values, such as the -1 of a
// missing route, may repeat. There is no branch per pair, so that the compiler can vectorise:
// repeats are very rare.
template <class Id>
MOETAP_DEVICE constexpr bool repeats_an_expert(const Id* ids, int top_k,
                                               std::uint32_t num_experts) {
  bool repeats = false;
  for (int i = 1; i < top_k; ++i) {
    bool again = false;
    for (int j = 0; j < i; ++j) again |= ids[j] == ids[i];
    // A negative id becomes a large one.
    repeats |= again & (static_cast<std::uint64_t>(ids[i]) < num_experts);
  }
  return repeats;
}

// For messages: the first k with the same expert as an earlier pick, or -1.
template <class Id>
MOETAP_DEVICE constexpr int repeated_pick(const Id* ids, int top_k, std::uint32_t num_experts) {
  for (int k = 1; k < top_k; ++k) {
    if (static_cast<std::uint64_t>(ids[k]) >= num_experts) continue;
    for (int j = 0; j < k; ++j) {
      if (ids[j] == ids[k]) return k;
    }
  }
  return -1;
}

}  // namespace moetap
