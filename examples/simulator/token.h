// Token ids of the simulated model.
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

// Whether an event with this chance happens, drawn from a seed and the event's subject.
constexpr bool happens(double chance, std::uint64_t seed, std::uint64_t about) {
  return static_cast<double>(mix(seed ^ mix(about)) >> 11) * 0x1p-53 < chance;
}

// The token that a request with this seed samples for `position`.
constexpr Token sampled_token(std::uint64_t seed, std::int64_t position) {
  return static_cast<Token>(mix(seed ^ mix(static_cast<std::uint64_t>(position))) % kVocabulary);
}

// The token that the draft model proposes for it: with the chance `reject_rate` a different one.
constexpr Token draft_token(std::uint64_t seed, std::int64_t position, double reject_rate) {
  const Token right = sampled_token(seed, position);
  const bool wrong = happens(reject_rate, ~seed, static_cast<std::uint64_t>(position));
  return wrong ? (right + 1) % kVocabulary : right;
}

}  // namespace demo
