// The layout that a vLLM process can be at the other end of: int32 [slot][hidden layer][top_k], no
// header, no stamps, each save and each read under the exclusive lock. It has all hidden layers of
// the model, as vLLM sizes and indexes it; ours are those that have a router (H33). What stands in
// the others is 0, as vLLM leaves them, and nobody reads it.
#pragma once

#include <moetap/endpoint.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/internal/layer_runs.h"

namespace moetap {

using WireId = std::int32_t;

// All ids of a row that must not be used: it has a missing route, or its step failed.
inline constexpr WireId kWireMissing = -1;

inline std::size_t wire_row_ids(const ModelShape& shape) {
  return detail::array_row_size(shape, true);
}

inline std::size_t wire_row_bytes(const ModelShape& shape) {
  return wire_row_ids(shape) * sizeof(WireId);
}

inline std::size_t wire_bytes(const Endpoint& endpoint) {
  return static_cast<std::size_t>(endpoint.num_slots) * wire_row_bytes(endpoint.shape);
}

// Rows of one shape, from and to that layout.
class WireRows {
 public:
  explicit WireRows(const ModelShape& shape);

  std::size_t row_ids() const { return row_ids_; }

  // Narrow rows, one after the other, to as many wire rows that follow each other.
  void put(std::span<const std::byte> narrow, WireId* wire) const;
  // A wire row that is missing.
  void erase(WireId* wire) const;

  // One wire row to a narrow one. False if an id of a MoE layer is outside [0, num_experts);
  // `narrow` is meaningless then.
  bool get(std::span<const WireId> wire, std::byte* narrow) const;
  // Whether nobody wrote the row, or not all of it: all ids of the MoE layers are kWireMissing, or
  // one layer's are all 0, as the memory was made (unless the model may pick that).
  bool is_missing(std::span<const WireId> wire) const;
  // Whether a MoE layer picks an expert twice, though the model's router does not (H32).
  bool repeats(std::span<const WireId> wire) const;

 private:
  std::size_t row_ids_;
  std::size_t row_bytes_;  // of a narrow row
  std::size_t top_k_;
  int num_experts_;
  bool distinct_;  // a layer picks several experts, each once
  IdType type_;
  std::vector<detail::LayerRun> runs_;
};

}  // namespace moetap
