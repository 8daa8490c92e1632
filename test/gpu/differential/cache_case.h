// A random life of a DeviceCache: a shape, how each layer's picks get there, and some steps. Plain
// data, which a device runs (cache_run.h) and a reference computes (cache_reference.h).
#pragma once

#include <moetap/device_fault.h>
#include <moetap/shape.h>
#include <moetap/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "test/simulation/dice.h"

namespace moetap::test {

enum class Way : std::uint8_t {
  capture,  // a kernel of ours reads topk_ids
  sink,     // the router's kernel puts its picks
  output,   // a fused kernel writes them to the cache
};

// How a layer's picks come, in all steps.
struct LayerCase {
  Way way = Way::capture;
  IdType type = IdType::int32;
  std::int64_t stride = 0;  // elements between rows of topk_ids
  std::int64_t offset = 0;  // elements before the first row
  WeightType weights{};     // given beside the ids
  std::int64_t weight_stride = 0;
  std::int64_t weight_offset = 0;
  bool gathered = false;  // weights that did not come are marked
  int declared = 0;       // sink: shared columns that it was told of
};

// A layer in one step. The rows before and after this rank's are not the reference's concern.
struct LayerStep {
  int launches = 1;
  std::vector<std::int64_t> ids;       // [num_tokens][top_k]
  std::vector<std::uint32_t> weights;  // the same, as bits of their type
  // Only for sinks:
  int first_k = 0;
  int shared = 0;
  std::int64_t left_out = -1;    // this row's last pick is not put
  bool without_weights = false;  // though rows have some
  // Only for outputs: the kernel writes so many rows.
  std::int64_t written = 0;
};

struct StepCase {
  std::int64_t num_tokens = 0;
  std::int64_t dp_row = 0;
  std::int64_t rows = 0;  // of topk_ids
  std::vector<LayerStep> layers;
  std::vector<std::int64_t> slots;                   // [num_tokens]
  std::optional<std::vector<std::uint32_t>> wanted;  // tokens
  std::int64_t record_offset = 0;                    // bytes

  std::int64_t num_rows() const {
    return wanted ? static_cast<std::int64_t>(wanted->size()) : num_tokens;
  }
};

struct CacheCase {
  CacheCase() = default;
  explicit CacheCase(std::uint64_t seed);

  // Row of topk_ids that is token 0's.
  std::int64_t first_row(const StepCase& step) const {
    return first_row_from_step ? step.dp_row : fixed_first_row;
  }
  bool clears() const;  // whether a layer is written by other kernels than ours
  std::string to_string() const;

  ModelShape shape = ModelShape::uniform(1, 1, 2);
  std::int64_t max_tokens = 1;
  std::int64_t max_rows = 1;  // of topk_ids
  bool compare_all_picks = false;
  bool first_row_from_step = false;
  std::int64_t fixed_first_row = 0;
  std::int64_t num_slots = 1;
  bool graph = false;  // layers are recorded once, with max_rows rows
  std::vector<LayerCase> layers;
  std::vector<StepCase> steps;
};

}  // namespace moetap::test
