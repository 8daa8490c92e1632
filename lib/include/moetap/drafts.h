// How the drafts of an engine depend on each other.
#pragma once

#include <cstdint>

namespace moetap {

// How a step's drafts (speculative tokens) depend on each other.
enum class Drafts : std::uint8_t {
  // Drafts may be alternatives to each other. The accepted drafts need not be the first ones, and
  // the engine moves their keys and values to their final slots. accept() must say which were
  // accepted; otherwise they have no rows.
  tree,
  // Each draft follows the previous one. The accepted drafts are therefore the first ones, and stay
  // where they were computed. Also for a worker that publishes after verification, if its slot
  // mapping has the final slot of each accepted token and the remaining slots for the others.
  chain,
};

}  // namespace moetap
