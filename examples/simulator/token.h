// Token ids of the pretended model.
#pragma once

#include <moetap/kernel.h>

#include <cstdint>

namespace demo {

using Token = std::int32_t;

inline constexpr Token kVocabulary = 131072;

// A well-mixed hash (the finalizer of splitmix64, Steele et al. 2014).
MOETAP_DEVICE constexpr std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// The token that a request with this seed samples for `position`.
constexpr Token sampled_token(std::uint64_t seed, std::int64_t position) {
  return static_cast<Token>(mix(seed ^ mix(static_cast<std::uint64_t>(position))) % kVocabulary);
}

}  // namespace demo
