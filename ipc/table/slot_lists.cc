#include "ipc/internal/slot_lists.h"

#include <moetap/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "lib/internal/number_format.h"

namespace moetap {
namespace {

Slot plain(Slot slot) { return slot; }
Slot plain(MarkedSlot marked) { return marked.slot(); }

// No early exit: lists are long and invalid slots rare.
template <class S>
void check_range(std::span<const S> slots, const SlotLimits& limits) {
  bool bad = false;
  for (const S slot : slots) bad |= !limits.exists(plain(slot));
  if (!bad) return;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const Slot slot = plain(slots[i]);
    if (!limits.exists(slot)) {
      throw RangeError(
          fmt::format("slot {} (number {} of {}) is outside the buffer's {} slots: configure both "
                      "ends with num_slots = num_blocks * block_size of the anchor KV-cache group",
                      slot, i, slots.size(), limits.num_slots));
    }
  }
}

void check_bytes(const SlotLimits& limits, std::size_t num_slots, std::size_t rows_bytes) {
  if (rows_bytes == num_slots * limits.row_bytes) return;
  throw ArgumentError(fmt::format("{} bytes of rows for {} slots: {} bytes are needed", rows_bytes,
                                  num_slots, num_slots * limits.row_bytes));
}

}  // namespace

void check_write(const SlotLimits& limits, std::int64_t max_rows, std::span<const MarkedSlot> slots,
                 std::size_t rows_bytes) {
  if (slots.size() > static_cast<std::size_t>(max_rows)) {
    throw RangeError(
        fmt::format("{} rows in a step, but at most {} are allowed: raise max_tokens at both ends",
                    slots.size(), max_rows));
  }
  check_bytes(limits, slots.size(), rows_bytes);
  check_range(slots, limits);
}

void check_put(const SlotLimits& limits, Step step, std::span<const Slot> slots,
               std::size_t rows_bytes, std::size_t num_states) {
  if (step == 0 || step > kLastStep) {
    throw ArgumentError(fmt::format("{} is no step number: use 1 to {}", step, kLastStep));
  }
  check_bytes(limits, slots.size(), rows_bytes);
  check_range(slots, limits);
  if (num_states != 0 && num_states != slots.size()) {
    throw ArgumentError(
        fmt::format("{} states of {} rows to be put: give one for each, or none if all are present",
                    num_states, slots.size()));
  }
  std::vector<Slot> sorted(slots.begin(), slots.end());
  std::ranges::sort(sorted);
  const auto twice = std::ranges::adjacent_find(sorted);
  if (twice == sorted.end()) return;
  throw ArgumentError(
      fmt::format("slot {} comes twice in a list of {} rows to be put: each has a slot of its own",
                  *twice, slots.size()));
}

void throw_twice(std::span<const MarkedSlot> slots, std::size_t index) {
  throw ArgumentError(fmt::format(
      "slot {} comes twice in a step (the second time as number {} of {}): each token of a step "
      "has a slot of its own",
      slots[index].slot(), index, slots.size()));
}

void throw_marked(std::span<const MarkedSlot> slots, std::size_t index) {
  const Slot slot = slots[index].slot();
  for (const MarkedSlot earlier : slots.first(index)) {
    if (earlier.slot() == slot) throw_twice(slots, index);
  }
  throw MismatchError(fmt::format(
      "slot {} is marked as being written, but no step writes it: its stamp was overwritten by "
      "another process. The step's rows are lost; see who else opens this memory",
      slot));
}

void check_read_sizes(std::size_t num_slots, std::size_t num_windows, std::size_t rows_bytes,
                      std::size_t num_states, std::size_t row_bytes) {
  if (num_windows != 1 && num_windows != num_slots) {
    throw ArgumentError(
        fmt::format("read of {} slots with {} windows: give one for all or one a slot", num_slots,
                    num_windows));
  }
  if (num_states != num_slots || rows_bytes != num_slots * row_bytes) {
    throw ArgumentError(fmt::format(
        "read of {} slots into {} bytes and {} states: {} bytes and {} states are needed",
        num_slots, rows_bytes, num_states, num_slots * row_bytes, num_slots));
  }
}

void check_read(const SlotLimits& limits, std::span<const Slot> slots, std::size_t num_windows,
                std::size_t rows_bytes, std::size_t num_states) {
  check_read_sizes(slots.size(), num_windows, rows_bytes, num_states, limits.row_bytes);
  check_range(slots, limits);
}

void check_arrived(std::span<const StepWindow> windows, Step last_step) {
  const auto ahead = [last_step](const StepWindow& window) {
    const bool open = window.last == StepWindow{}.last;
    return !open & (window.first < window.last) & (window.last > last_step);
  };
  bool any = false;  // no early exit, as above
  for (const StepWindow& window : windows) any |= ahead(window);
  if (!any) return;
  Step latest = 0;
  for (const StepWindow& window : windows) {
    if (ahead(window)) latest = std::max(latest, window.last);
  }
  throw StateError(fmt::format(
      "read of rows written up to step {}, but the last step that has arrived is {}: wait_for({}) "
      "first, since a row that it writes again would look present until then",
      latest, last_step, latest));
}

}  // namespace moetap
