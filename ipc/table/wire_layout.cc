#include "ipc/internal/wire_layout.h"

#include <moetap/picks.h>

#include <algorithm>

#include "lib/internal/injection.h"

namespace moetap {
namespace {

template <class Id>
void widen_as(std::span<const std::byte> narrow, WireId* wire) {
  const auto* ids = reinterpret_cast<const Id*>(narrow.data());
  const std::size_t count = narrow.size() / sizeof(Id);
  for (std::size_t i = 0; i < count; ++i) wire[i] = ids[i];
}

void widen(IdType type, std::span<const std::byte> narrow, WireId* wire) {
  if (type == IdType::uint8) {
    widen_as<std::uint8_t>(narrow, wire);
  } else {
    widen_as<std::uint16_t>(narrow, wire);
  }
}

// No early exit: the loop is vectorised, and invalid ids are rare.
template <class Id>
bool narrow_as(std::span<const WireId> wire, std::uint32_t num_experts, std::byte* narrow) {
  auto* ids = reinterpret_cast<Id*>(narrow);
  std::uint32_t bad = 0;
  for (std::size_t i = 0; i < wire.size(); ++i) {
    const auto id = static_cast<std::uint32_t>(wire[i]);
    bad |= static_cast<std::uint32_t>(id >= num_experts);
    ids[i] = static_cast<Id>(id);
  }
  return bad == 0;
}

bool narrow_ids(std::span<const WireId> wire, int num_experts, IdType type, std::byte* narrow) {
  const auto limit = static_cast<std::uint32_t>(num_experts);
  return type == IdType::uint8 ? narrow_as<std::uint8_t>(wire, limit, narrow)
                               : narrow_as<std::uint16_t>(wire, limit, narrow);
}

}  // namespace

WireRows::WireRows(const ModelShape& shape)
    : row_ids_(wire_row_ids(shape)),
      row_bytes_(shape.row_bytes()),
      top_k_(static_cast<std::size_t>(shape.top_k())),
      num_experts_(shape.num_experts()),
      distinct_(shape.top_k() >= 2 && !shape.repeats_experts()),
      type_(shape.id_type()),
      runs_(detail::layer_runs(shape, !MOETAP_OFF("H33 indexed by model layer"))) {}

void WireRows::put(std::span<const std::byte> narrow, WireId* wire) const {
  if (runs_.front().count == row_ids_) return widen(type_, narrow, wire);  // no dense layers
  const std::size_t width = id_bytes(type_);
  for (; !narrow.empty(); narrow = narrow.subspan(row_bytes_), wire += row_ids_) {
    std::size_t next = 0;
    for (const detail::LayerRun& run : runs_) {
      std::fill(wire + next, wire + run.array, 0);
      widen(type_, narrow.subspan(run.row * width, run.count * width), wire + run.array);
      next = run.array + run.count;
    }
    std::fill(wire + next, wire + row_ids_, 0);
  }
}

void WireRows::erase(WireId* wire) const {
  std::fill_n(wire, row_ids_, 0);
  for (const detail::LayerRun& run : runs_) std::fill_n(wire + run.array, run.count, kWireMissing);
}

bool WireRows::get(std::span<const WireId> wire, std::byte* narrow) const {
  const std::size_t width = id_bytes(type_);
  return std::ranges::all_of(runs_, [&](const detail::LayerRun& run) {
    return narrow_ids(wire.subspan(run.array, run.count), num_experts_, type_,
                      narrow + run.row * width);
  });
}

bool WireRows::is_missing(std::span<const WireId> wire) const {
  const auto all = [wire](std::size_t first, std::size_t count, WireId value) {
    return std::ranges::all_of(wire.subspan(first, count),
                               [value](WireId id) { return id == value; });
  };
  const auto unwritten = [&](const detail::LayerRun& run) {
    for (std::size_t layer = 0; layer < run.count; layer += top_k_) {
      if (all(run.array + layer, top_k_, 0)) return true;
    }
    return false;
  };
  return std::ranges::all_of(runs_,
                             [&](const detail::LayerRun& run) {
                               return all(run.array, run.count, kWireMissing);
                             }) ||
         (distinct_ && std::ranges::any_of(runs_, unwritten));
}

bool WireRows::repeats(std::span<const WireId> wire) const {
  if (!distinct_) return false;
  return std::ranges::any_of(runs_, [&](const detail::LayerRun& run) {
    for (std::size_t layer = 0; layer < run.count; layer += top_k_) {
      if (repeats_an_expert(&wire[run.array + layer], static_cast<int>(top_k_),
                            static_cast<std::uint32_t>(num_experts_))) {
        return true;
      }
    }
    return false;
  });
}

}  // namespace moetap
