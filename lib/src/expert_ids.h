// Ids that a model can have, in rows that come from a caller (H20).
#pragma once

#include <moetap/shape.h>
#include <moetap/types.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace moetap::detail {

// Of the ids in whole rows, whatever weights lie behind them; 0 if there are none.
std::uint32_t highest_id(const ModelShape& shape, std::span<const std::byte> rows);

// RangeError with slot, layer and id, if rows[i] for a slot >= 0 has an id of no expert; one that
// is stored as ~slot is missing, whatever its bytes. Other sizes than a row a slot are left to
// whoever takes the rows.
void require_ids(const ModelShape& shape, std::span<const Slot> stored,
                 std::span<const std::byte> rows);

}  // namespace moetap::detail
