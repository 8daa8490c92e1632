// The router outputs that are captured, and the memory to which a fused kernel may write them.
#pragma once

#include <moetap/device_fault.h>
#include <moetap/types.h>
#include <moetap/weight_type.h>

#include <cstdint>

namespace moetap {

// The weights of a router's picks, as the experts use them. Device memory with the picks' number of
// rows and columns, elements of `type`, rows `row_stride` elements apart. Any bit pattern is valid.
struct TopkWeights {
  const void* data = nullptr;
  WeightType type = WeightType::none;
  std::int64_t row_stride = 0;
  // Set by a PartGather: elements that did not arrive from another rank are kNotGathered, and fail
  // the step.
  bool gathered = false;
};

// A router's picks for one layer. Device memory with `rows` x `columns` elements of `type`, rows
// `row_stride` elements apart (row_stride >= columns). Logical, global expert ids, taken before any
// mapping to physical replicas; -1 is a missing route.
struct TopkIds {
  const void* data = nullptr;
  IdType type = IdType::int32;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t row_stride = 0;
  // If and only if the shape has weights: of its type, or float32 for bfloat16.
  TopkWeights weights{};
};

// The memory to which a fused MoE kernel writes its picks for one layer. Device memory, int16
// [rows][columns] without gaps, this rank's tokens from row 0 on; it may write fewer rows. Logical,
// global expert ids; -1 is a missing route.
struct RouteOutput {
  std::int16_t* data = nullptr;
  std::int64_t rows = 0;     // the device cache's max_tokens
  std::int64_t columns = 0;  // top_k
};

}  // namespace moetap
