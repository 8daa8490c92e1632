#include "examples/simulator/sequence.h"

namespace demo {

void Sequence::begin() {
  if (!tokens.empty()) return;
  tokens.reserve(static_cast<std::size_t>(request.length()));
  for (std::int64_t i = 0; i < request.prompt; ++i) tokens.push_back(request.prompt_token(i));
}

// Chained, so that equal hashes mean equal contents and equal prefixes (64 bits: among a million
// blocks a collision has a chance of about 3e-8, and the verifier would show it).
void Sequence::extend_hashes(int block_size) {
  const auto size = static_cast<std::size_t>(block_size);
  while ((hashes.size() + 1) * size <= tokens.size()) {
    std::uint64_t hash = hashes.empty() ? 0x6d6f65746170ULL : hashes.back();
    const Token* token = &tokens[hashes.size() * size];
    for (std::size_t i = 0; i < size; ++i) {
      hash = mix(hash + static_cast<std::uint64_t>(token[i]) + 0x9e3779b97f4a7c15ULL);
    }
    hashes.push_back(hash);
  }
}

Token token_of(const Request& request, std::int64_t position) {
  return position < request.prompt ? request.prompt_token(position)
                                   : sampled_token(request.seed, position);
}

}  // namespace demo
