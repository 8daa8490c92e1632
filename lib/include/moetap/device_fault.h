// What a device can find wrong with a step. C++17, so that an engine's CUDA code can include it.
#pragma once

#include <cstdint>

namespace moetap {

enum class DeviceFault : std::uint32_t {
  none = 0,
  expert_id,    // an id outside [0, num_experts) that is not -1: value = the id
  slot,         // a slot outside [0, num_slots): value = the slot
  layer_twice,  // a layer was captured a second time in this step
  rows,         // topk_ids has too few rows for the step: value = its rows
  weights,      // not those that the shape has came with the picks: value = their WeightType
  pick,  // a kernel has a pick that rows do not hold, and that is not declared: value = its k
  repeated_id,  // one expert was picked twice in a row: value = its id
};

// Stands in gathered topk_ids (int32) for what did not come from the rank that has it.
inline constexpr std::int32_t kNotGathered = -2'139'062'144;  // bytes of 0x80

}  // namespace moetap
