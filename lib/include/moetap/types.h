// The types that every part of moetap shares: ids, steps, slots, and the states of a row.
#pragma once

#include <moetap/number.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace moetap {

namespace detail {
struct StepKind {
  using Integer = std::uint64_t;
  static constexpr bool counts = true;
};
struct RequestKind {
  using Integer = std::uint64_t;
  static constexpr bool counts = false;
};
struct SlotKind {
  using Integer = std::int64_t;
  static constexpr bool counts = true;
};
struct BlockKind {
  using Integer = std::int64_t;
  static constexpr bool counts = false;
};
}  // namespace detail

// The number of a forward pass. The scheduler numbers them 1, 2, 3 … and never reuses a number. 0
// means "none".
using Step = Number<detail::StepKind>;

// The engine's number of a request.
using RequestId = Number<detail::RequestKind>;

// A physical KV-cache position in the anchor group: block_id * block_size + offset.
using Slot = Number<detail::SlotKind>;

// A block of the anchor group's KV cache.
using BlockId = Number<detail::BlockKind>;

// The slot of the block's first token.
constexpr Slot first_slot(BlockId block, std::int64_t block_size) {
  return Slot(block.value() * block_size);
}

// An engine's arrays of slots and blocks, looked at as such. No copy: the array must outlive the
// result.
inline std::span<const Slot> as_slots(std::span<const std::int64_t> slots) {
  return {reinterpret_cast<const Slot*>(slots.data()), slots.size()};
}
inline std::span<const BlockId> as_blocks(std::span<const std::int64_t> blocks) {
  return {reinterpret_cast<const BlockId*>(blocks.data()), blocks.size()};
}
// The same for an array that only the device can read.
inline const Slot* as_slots(const std::int64_t* slots) {
  return reinterpret_cast<const Slot*>(slots);
}

using Milliseconds = std::chrono::milliseconds;

// Positions [start, end) of a sequence.
struct TokenRange {
  std::int64_t start = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - start; }
  bool operator==(const TokenRange&) const = default;
};

// The element types that expert ids come in.
enum class IdType : std::uint8_t { uint8, uint16, int16, int32, int64 };

constexpr std::size_t id_bytes(IdType type) {
  switch (type) {
    case IdType::uint8:
      return 1;
    case IdType::uint16:
    case IdType::int16:
      return 2;
    case IdType::int32:
      return 4;
    case IdType::int64:
      return 8;
  }
  return 0;
}

// Whether the type can represent every expert id of a model.
constexpr bool holds_ids(IdType type, std::int64_t num_experts) {
  switch (type) {
    case IdType::uint8:
      return num_experts <= 256;
    case IdType::uint16:
      return num_experts <= 65536;
    case IdType::int16:
      return num_experts <= 32768;
    case IdType::int32:
    case IdType::int64:
      return true;
  }
  return false;
}

constexpr std::string_view id_type_name(IdType type) {
  constexpr std::string_view names[] = {"uint8", "uint16", "int16", "int32", "int64"};
  return names[static_cast<std::size_t>(type)];
}

// The state of a row. It is always stored beside the row and never encoded in its ids.
enum class RowState : std::uint8_t {
  present,     // captured in a known step within the requested window
  missing,     // never captured, or its step failed
  stale,       // captured before the window, for an earlier owner of the slot
  clobbered,   // overwritten after the window, by a later owner of the slot
  unverified,  // the buffer has no stamps (wire-compatible layout), so the state is not known
};

constexpr std::string_view row_state_name(RowState state) {
  constexpr std::string_view names[] = {"present", "missing", "stale", "clobbered", "unverified"};
  return names[static_cast<std::size_t>(state)];
}

// Whether the bytes of a row in this state are routes.
constexpr bool has_routes(RowState state) {
  return state == RowState::present || state == RowState::unverified;
}

// The steps in which the current owner of a slot can have written it. It goes from the step for
// which the block was allocated to the last step scheduled for it, both included. An open end
// accepts what has arrived so far. Only the true last step shows that no write is still to come.
struct StepWindow {
  Step first = 1;
  Step last = Step::max();
  bool operator==(const StepWindow&) const = default;
};

// The state of a row whose stamp is `written` (0: none), for an owner with this window.
constexpr RowState row_state(Step written, StepWindow window) {
  if (written == 0) return RowState::missing;
  if (written < window.first) return RowState::stale;
  if (written > window.last) return RowState::clobbered;
  return RowState::present;
}

}  // namespace moetap
