// Ids that a model can have, in rows that come from a caller (H20), and nothing beside them but
// their weights.
#pragma once

#include <moetap/shape.h>
#include <moetap/types.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace moetap::detail {

// Of the ids in whole rows, whatever weights lie behind them; 0 if there are none.
std::uint32_t highest_id(const ModelShape& shape, std::span<const std::byte> rows);

// The index of the first row with something else than 0 between ids and weights: equal rows are
// equal in all bytes. -1 if there is none.
std::ptrdiff_t filled_gap(const ModelShape& shape, std::span<const std::byte> rows);

// Makes those bytes of a row 0.
void clear_gap(const ModelShape& shape, std::byte* row);

// RangeError with slot, layer and id, if rows[i] for a slot >= 0 has an id of no expert, and
// ArgumentError with the slot, if its gap is filled; one that is stored as ~slot is missing,
// whatever its bytes. Other sizes than a row a slot are left to whoever takes the rows.
void require_rows(const ModelShape& shape, std::span<const Slot> stored,
                  std::span<const std::byte> rows);

}  // namespace moetap::detail
