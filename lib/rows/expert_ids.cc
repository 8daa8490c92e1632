#include "lib/internal/expert_ids.h"

#include <moetap/error.h>
#include <moetap/picks.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "lib/internal/number_format.h"

namespace moetap::detail {
namespace {

template <class Id>
Id id_at(std::span<const std::byte> ids, std::size_t index) {
  Id id;
  std::memcpy(&id, ids.data() + index * sizeof id, sizeof id);
  return id;
}

// One pass without branches: nearly always all ids are valid.
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

// Rows whose ids are aligned, or single bytes.
template <class Id>
bool repeats(const ModelShape& shape, std::span<const std::byte> rows) {
  const auto num_experts = static_cast<std::uint32_t>(shape.num_experts());
  for (std::size_t row = 0; row < rows.size(); row += shape.row_bytes()) {
    const auto* ids = reinterpret_cast<const Id*>(rows.data() + row);
    for (int layer = 0; layer < shape.num_layers(); ++layer, ids += shape.top_k()) {
      if (repeats_an_expert(ids, shape.top_k(), num_experts)) return true;
    }
  }
  return false;
}

// H32.
bool repeats(const ModelShape& shape, std::span<const std::byte> rows) {
  if (shape.repeats_experts() || shape.top_k() == 1) return false;
  if (shape.id_type() == IdType::uint8) return repeats<std::uint8_t>(shape, rows);
  if (reinterpret_cast<std::uintptr_t>(rows.data()) % sizeof(std::uint16_t) == 0) {
    return repeats<std::uint16_t>(shape, rows);
  }
  return repeats<std::uint16_t>(shape, std::vector<std::byte>(rows.begin(), rows.end()));
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

bool can_be_present(const ModelShape& shape, std::span<const std::byte> rows) {
  return highest_id(shape, rows) < static_cast<std::uint32_t>(shape.num_experts()) &&
         filled_gap(shape, rows) < 0 && !repeats(shape, rows);
}

void refuse_row(const ModelShape& shape, std::span<const std::byte> row, std::string_view name) {
  std::vector<std::uint32_t> ids(shape.row_ids());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ids[i] = shape.id_type() == IdType::uint8 ? id_at<std::uint8_t>(row, i)
                                              : std::uint32_t{id_at<std::uint16_t>(row, i)};
  }
  const auto num_experts = static_cast<std::uint32_t>(shape.num_experts());
  const auto top_k = static_cast<std::size_t>(shape.top_k());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= num_experts) refuse_id(shape, static_cast<int>(i / top_k), ids[i], name);
  }
  for (int layer = 0; layer < shape.num_layers(); ++layer) {
    const std::uint32_t* picks = ids.data() + static_cast<std::size_t>(layer) * top_k;
    const int k = repeated_pick(picks, shape.top_k(), num_experts);
    if (k >= 0 && !shape.repeats_experts()) refuse_repeated(shape, layer, picks[k], name);
  }
  throw ArgumentError(fmt::format(
      "{}: the {} bytes between its ids and its weights are not 0; clear them, or check that the "
      "weights begin at weights_offset(), {}",
      name, shape.weights_offset() - shape.ids_bytes(), shape.weights_offset()));
}

void refuse_id(const ModelShape& shape, int layer, std::int64_t id, std::string_view name) {
  throw RangeError(fmt::format(
      "{}, layer {}: expert id {} of a model with {} experts; give logical ids, before any map to "
      "physical replicas, and rows that are missing as missing",
      name, shape.moe_layers()[static_cast<std::size_t>(layer)], id, shape.num_experts()));
}

void refuse_repeated(const ModelShape& shape, int layer, std::int64_t id, std::string_view name) {
  throw ArgumentError(fmt::format(
      "{}, layer {}: expert id {} is picked twice, which no top-{} router does: is it memory that "
      "was not written? For a model that repeats experts on purpose, declare "
      "ModelShape::with_repeated_experts()",
      name, shape.moe_layers()[static_cast<std::size_t>(layer)], id, shape.top_k()));
}

void require_rows(const ModelShape& shape, std::span<const Slot> slots,
                  std::span<const std::byte> rows, std::span<const RowState> states) {
  const std::size_t row_bytes = shape.row_bytes();
  if (rows.size() != slots.size() * row_bytes || can_be_present(shape, rows)) return;
  if (!states.empty() && states.size() != slots.size()) return;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const auto row = rows.subspan(i * row_bytes, row_bytes);
    const bool missing = !states.empty() && !has_routes(states[i]);
    if (missing || can_be_present(shape, row)) continue;
    refuse_row(shape, row, fmt::format("row for slot {}", slots[i]));
  }
}

}  // namespace moetap::detail
