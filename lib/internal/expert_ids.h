// Checks rows that come from elsewhere: only ids that the model has (H20), no expert twice in a
// layer (H32), zeros between ids and weights.
#pragma once

#include <moetap/shape.h>
#include <moetap/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace moetap::detail {

// The greatest id in whole rows, ignoring weights after the ids; 0 if there are no ids.
std::uint32_t highest_id(const ModelShape& shape, std::span<const std::byte> rows);

// The index of the first row with bytes other than 0 between ids and weights, or -1. The bytes must
// be 0 so that equal rows are equal in all bytes.
std::ptrdiff_t filled_gap(const ModelShape& shape, std::span<const std::byte> rows);

// Zeroes these bytes of a row.
void clear_gap(const ModelShape& shape, std::byte* row);

// Whether these whole rows can all be present.
bool can_be_present(const ModelShape& shape, std::span<const std::byte> rows);

// Throws the reason why a row cannot be present, in a message that begins with `name`, e.g. "row
// for slot 5". RangeError for an id that the model does not have. ArgumentError for a repeated id,
// or bytes other than 0 between ids and weights.
[[noreturn]] void refuse_row(const ModelShape& shape, std::span<const std::byte> row,
                             std::string_view name);
// The same for one id of the layer with this index in a row.
[[noreturn]] void refuse_id(const ModelShape& shape, int layer, std::int64_t id,
                            std::string_view name);
[[noreturn]] void refuse_repeated(const ModelShape& shape, int layer, std::int64_t id,
                                  std::string_view name);

// As refuse_row(), for the first rows[i] that cannot be present. A row is missing, whatever its
// bytes, if `states` says so; see SlotReadTransport::put. Sizes that do not match are left to the
// function that takes the rows.
void require_rows(const ModelShape& shape, std::span<const Slot> slots,
                  std::span<const std::byte> rows, std::span<const RowState> states);

}  // namespace moetap::detail
