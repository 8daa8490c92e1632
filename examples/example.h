// The constants that the two example programs share. An engine's processes get them from its
// configuration and its scheduler.
#pragma once

#include <moetap/endpoint.h>

#include <string>
#include <vector>

namespace example {

// One request: a prompt, and one token per step after the first. Its KV cache is in these blocks,
// in this order.
inline constexpr int kBlockSize = 16;
inline const std::vector<moetap::BlockId> kBlocks = {3, 7, 5, 2};
inline constexpr std::int64_t kPrompt = 40;
inline constexpr std::int64_t kSteps = 25;

// The last sampled token is not run through the model, so it has no row.
inline constexpr std::int64_t kRows = kPrompt + kSteps - 1;

inline moetap::Endpoint endpoint(const std::string& instance) {
  return {.instance = instance,
          .dp_rank = 0,
          .shape = moetap::ModelShape::uniform(/*num_layers=*/4, /*top_k=*/2, /*num_experts=*/16),
          .num_slots = 8 * kBlockSize,
          .max_tokens = 64};
}

}  // namespace example
