// The simulated model's router: a pure function, so that the worker's kernel and the scheduler's
// verifier compute the same picks independently.
#pragma once

#include <moetap/kernel.h>
#include <moetap/shape.h>

#include <algorithm>
#include <cstdint>

#include "examples/simulator/token.h"

namespace demo {

// Picks top_k distinct experts from token, position and layer. Skewed like real routers: at each
// layer a few experts get about three times the average load, others half of it.
class Router {
 public:
  explicit Router(const moetap::ModelShape& shape)
      : num_experts_(static_cast<std::uint32_t>(shape.num_experts())),
        top_k_(static_cast<std::uint32_t>(shape.top_k())),
        max_stride_(std::clamp(num_experts_ / top_k_, 1U, 4U)) {}

  MOETAP_DEVICE int top_k() const { return static_cast<int>(top_k_); }

  // Writes top_k ids to `ids`.
  template <class Id>
  MOETAP_DEVICE void operator()(Token token, std::int64_t position, int layer, Id* ids) const {
    // A layer's experts are ranked by popularity. The picks are the ranks `first`, `first` +
    // `stride`, …: distinct, since top_k * max_stride <= num_experts.
    const std::uint64_t h = hash(token, position, layer);
    const std::uint64_t u = h >> 32;
    const auto first = static_cast<std::uint32_t>(((u * u >> 32) * num_experts_) >> 32);
    const auto stride = static_cast<std::uint32_t>(1 + ((h & 0xffff) * max_stride_ >> 16));
    // Rank -> expert: multiplying by a prime above every num_experts permutes the residues.
    const std::uint32_t factor = prime(layer) % num_experts_;
    std::uint32_t id = (first * factor + static_cast<std::uint32_t>(layer) * 17U) % num_experts_;
    const std::uint32_t next = stride * factor % num_experts_;
    for (std::uint32_t k = 0; k < top_k_; ++k) {
      ids[k] = static_cast<Id>(id);
      id += next;
      if (id >= num_experts_) id -= num_experts_;
    }
  }

  // The weight of pick k, 0.5 to 1, as the bits of a float32, whose upper half is a bfloat16.
  MOETAP_DEVICE std::uint32_t weight(Token token, std::int64_t position, int layer, int k) const {
    return 0x3F00'0000U |
           static_cast<std::uint32_t>(
               mix(hash(token, position, layer) + static_cast<std::uint64_t>(k)) >> 41);
  }

 private:
  MOETAP_DEVICE static std::uint64_t hash(Token token, std::int64_t position, int layer) {
    // Odd multipliers keep the three apart.
    return mix(static_cast<std::uint64_t>(token) * 0x9e3779b97f4a7c15ULL +
               static_cast<std::uint64_t>(position) * 0xd1b54a32d192ed03ULL +
               static_cast<std::uint64_t>(layer + 1) * 0x8cb92ba72f3d8dd7ULL);
  }
  // Primes above ModelShape::kMaxExperts.
  MOETAP_DEVICE static std::uint32_t prime(int layer) {
    constexpr std::uint32_t primes[] = {65539, 65543, 65551, 65557, 65563, 65579, 65581, 65587};
    return primes[layer & 7];
  }

  std::uint32_t num_experts_;
  std::uint32_t top_k_;
  std::uint32_t max_stride_;
};
static_assert(moetap::ModelShape::kMaxExperts <= 65536);

}  // namespace demo
