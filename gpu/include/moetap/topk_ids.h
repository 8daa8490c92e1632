// What a router gives to capture, and where a fused kernel may put it.
#pragma once

#include <moetap/device_fault.h>
#include <moetap/types.h>
#include <moetap/weight_type.h>

#include <cstdint>

namespace moetap {

// The weights of a router's picks, as they go to the experts: device memory, as many rows and
// columns of `type` as the picks, rows `row_stride` elements apart. Any bits are values.
struct TopkWeights {
  const void* data = nullptr;
  WeightType type = WeightType::none;
  std::int64_t row_stride = 0;
  // From a PartGather: what did not come from another rank is kNotGathered, and fails the step.
  bool gathered = false;
};

// A router's picks for one layer: device memory, `rows` x `columns` elements of `type`, rows
// `row_stride` elements apart (row_stride >= columns). Logical, global expert ids, taken before any
// map to physical replicas; -1 is a missing route.
struct TopkIds {
  const void* data = nullptr;
  IdType type = IdType::int32;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t row_stride = 0;
  TopkWeights
      weights{};  // exactly if the shape has some: of its type, or float32 for bfloat16 rows
};

// Where a fused MoE kernel is to write the ids that it picks for one layer: device memory, int16
// [rows][columns] without gaps, this rank's tokens from row 0; it may write fewer rows. Logical,
// global expert ids; -1 is a missing route.
struct RouteOutput {
  std::int16_t* data = nullptr;
  std::int64_t rows = 0;     // the device cache's max_tokens
  std::int64_t columns = 0;  // top_k
};

}  // namespace moetap
