// The layout that a vLLM process can be at the other end of: int32 [slot][layer][top_k], no header,
// no stamps, each save and each read under the exclusive lock.
#pragma once

#include <moetap/endpoint.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace moetap {

using WireId = std::int32_t;

// All ids of a row that must not be used: it has a missing route, or its step failed.
inline constexpr WireId kWireMissing = -1;

inline std::size_t wire_row_bytes(const ModelShape& shape) {
  return shape.row_ids() * sizeof(WireId);
}

inline std::size_t wire_bytes(const Endpoint& endpoint) {
  return static_cast<std::size_t>(endpoint.num_slots) * wire_row_bytes(endpoint.shape);
}

// Narrow ids to wire ids.
void widen(IdType type, std::span<const std::byte> narrow, WireId* wire);

// And back. False if any is outside [0, num_experts); `narrow` is meaningless then.
bool narrow_ids(std::span<const WireId> wire, int num_experts, IdType type, std::byte* narrow);

}  // namespace moetap
