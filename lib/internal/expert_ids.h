// Rows that come from elsewhere: only ids that a model has (H20), no expert twice in a layer (H32),
// and nothing beside them but their weights.
#pragma once

#include <moetap/shape.h>
#include <moetap/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace moetap::detail {

// Of the ids in whole rows, whatever weights lie behind them; 0 if there are none.
std::uint32_t highest_id(const ModelShape& shape, std::span<const std::byte> rows);

// The index of the first row with something else than 0 between ids and weights: equal rows are
// equal in all bytes. -1 if there is none.
std::ptrdiff_t filled_gap(const ModelShape& shape, std::span<const std::byte> rows);

// Makes those bytes of a row 0.
void clear_gap(const ModelShape& shape, std::byte* row);

// Whether whole rows can all be present.
bool can_be_present(const ModelShape& shape, std::span<const std::byte> rows);

// Says why a row cannot, in a message that begins with its `name`, "row for slot 5": RangeError for
// an id of no expert, ArgumentError for one that is there twice, or a gap that is filled.
[[noreturn]] void refuse_row(const ModelShape& shape, std::span<const std::byte> row,
                             std::string_view name);
// The same for one id of a layer, of which the index in a row is given.
[[noreturn]] void refuse_id(const ModelShape& shape, int layer, std::int64_t id,
                            std::string_view name);
[[noreturn]] void refuse_repeated(const ModelShape& shape, int layer, std::int64_t id,
                                  std::string_view name);

// As refuse_row() for the first of rows[i] for a slot >= 0 that cannot be present; one that is
// stored as ~slot is missing, whatever its bytes. Other sizes than a row a slot are left to whoever
// takes the rows.
void require_rows(const ModelShape& shape, std::span<const Slot> stored,
                  std::span<const std::byte> rows);

}  // namespace moetap::detail
