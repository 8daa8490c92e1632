// The layout that a vLLM process can be at the other end of: int32 [slot][hidden layer][top_k], no
// header, no stamps, each save and each read under the exclusive lock. It has all hidden layers of
// the model, as vLLM sizes and indexes it. moetap uses those with a router (H33). The others are 0,
// as in vLLM, and are never read.
#pragma once

#include <moetap/endpoint.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/internal/layer_runs.h"

namespace moetap {

using WireId = std::int32_t;

// Fills a row that must not be used, because it has a missing route or its step failed.
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

  // Converts consecutive narrow rows to as many consecutive wire rows.
  void put(std::span<const std::byte> narrow, WireId* wire) const;
  // Makes a wire row missing.
  void erase(WireId* wire) const;

  // Converts one wire row to a narrow row. Returns false if an id of a MoE layer is outside [0,
  // num_experts); `narrow` is then undefined.
  bool get(std::span<const WireId> wire, std::byte* narrow) const;
  // Whether the row was not, or not completely, written. Then all ids of the MoE layers are
  // kWireMissing, or one layer's ids are all 0 as in new memory (unless the model may pick that).
  bool is_missing(std::span<const WireId> wire) const;
  // Whether a MoE layer has an expert twice, although the model's router picks distinct ones (H32).
  bool repeats(std::span<const WireId> wire) const;

 private:
  std::size_t row_ids_;
  std::size_t row_bytes_;  // size of a narrow row
  std::size_t top_k_;
  int num_experts_;
  bool distinct_;  // each layer picks several distinct experts
  IdType type_;
  std::vector<detail::LayerRun> runs_;
};

}  // namespace moetap
