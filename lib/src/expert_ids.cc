#include "expert_ids.h"

#include <moetap/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace moetap::detail {
namespace {

template <class Id>
Id id_at(std::span<const std::byte> ids, std::size_t index) {
  Id id;
  std::memcpy(&id, ids.data() + index * sizeof id, sizeof id);
  return id;
}

// One pass without a branch: nearly always all ids are good.
template <class Id>
Id highest(std::span<const std::byte> ids) {
  Id most = 0;
  for (std::size_t i = 0; i < ids.size() / sizeof most; ++i)
    most = std::max(most, id_at<Id>(ids, i));
  return most;
}

template <class Id>
Id highest(const ModelShape& shape, std::span<const std::byte> rows) {
  if (shape.ids_bytes() == shape.row_bytes()) return highest<Id>(rows);
  Id most = 0;
  for (std::size_t row = 0; row < rows.size(); row += shape.row_bytes()) {
    most = std::max(most, highest<Id>(rows.subspan(row, shape.ids_bytes())));
  }
  return most;
}

[[noreturn]] void throw_no_expert(const ModelShape& shape, std::span<const std::byte> row,
                                  Slot slot) {
  std::size_t index = 0;
  const auto id = [&] {
    return shape.id_type() == IdType::uint8 ? id_at<std::uint8_t>(row, index)
                                            : std::uint32_t{id_at<std::uint16_t>(row, index)};
  };
  while (id() < static_cast<std::uint32_t>(shape.num_experts())) ++index;
  const std::size_t layer = index / static_cast<std::size_t>(shape.top_k());
  throw RangeError(fmt::format(
      "row for slot {}, layer {}: expert id {} of a model with {} experts; put logical ids, before "
      "any map to physical replicas, and ~slot for a row that is missing",
      slot, shape.moe_layers()[layer], id(), shape.num_experts()));
}

}  // namespace

std::uint32_t highest_id(const ModelShape& shape, std::span<const std::byte> rows) {
  return shape.id_type() == IdType::uint8 ? highest<std::uint8_t>(shape, rows)
                                          : highest<std::uint16_t>(shape, rows);
}

std::ptrdiff_t filled_gap(const ModelShape& shape, std::span<const std::byte> rows) {
  const std::size_t gap = shape.weights_offset() - shape.ids_bytes();
  if (gap == 0) return -1;
  const std::size_t row_bytes = shape.row_bytes();
  for (std::size_t i = 0; i < rows.size() / row_bytes; ++i) {
    const auto bytes = rows.subspan(i * row_bytes + shape.ids_bytes(), gap);
    if (std::ranges::any_of(bytes, [](std::byte b) { return b != std::byte{0}; })) {
      return static_cast<std::ptrdiff_t>(i);
    }
  }
  return -1;
}

void clear_gap(const ModelShape& shape, std::byte* row) {
  std::memset(row + shape.ids_bytes(), 0, shape.weights_offset() - shape.ids_bytes());
}

void require_rows(const ModelShape& shape, std::span<const Slot> stored,
                  std::span<const std::byte> rows) {
  const auto num_experts = static_cast<std::uint32_t>(shape.num_experts());
  const std::size_t row_bytes = shape.row_bytes();
  if (rows.size() != stored.size() * row_bytes) return;
  if (highest_id(shape, rows) < num_experts && filled_gap(shape, rows) < 0) return;
  for (std::size_t i = 0; i < stored.size(); ++i) {
    if (stored[i] < 0) continue;
    const auto row = rows.subspan(i * row_bytes, row_bytes);
    if (highest_id(shape, row) >= num_experts) throw_no_expert(shape, row, stored[i]);
    if (filled_gap(shape, row) >= 0) {
      throw ArgumentError(fmt::format(
          "row for slot {}: the {} bytes between its ids and its weights are not 0; clear them, or "
          "check that the weights begin at weights_offset(), {}",
          stored[i], shape.weights_offset() - shape.ids_bytes(), shape.weights_offset()));
    }
  }
}

}  // namespace moetap::detail
