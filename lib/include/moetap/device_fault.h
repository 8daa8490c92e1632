// Faults of a step that device code can find. C++17, so that an engine's CUDA code can include it.
#pragma once

#include <cstdint>

namespace moetap {

enum class DeviceFault : std::uint32_t {
  none = 0,
  expert_id,    // an id outside [0, num_experts) that is not -1: value = the id
  slot,         // a slot outside [0, num_slots): value = the slot
  layer_twice,  // a layer was captured twice in this step
  rows,         // topk_ids has too few rows for the step: value = its rows
  weights,      // the picks came with other weights than the shape has: value = their WeightType
  pick,         // a kernel put a pick beyond top_k that is not declared: value = its k
  repeated_id,  // one expert comes twice in a layer's picks for a token: value = its id
};

// The value of elements in gathered topk_ids (int32) that did not arrive from their rank.
inline constexpr std::int32_t kNotGathered = -2'139'062'144;  // bytes of 0x80

}  // namespace moetap
