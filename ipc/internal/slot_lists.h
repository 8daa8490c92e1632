// Checks of the slot lists that transports are given, and the runs in them.
#pragma once

#include <moetap/types.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "lib/internal/marked_slot.h"

namespace moetap {

// Greater than all steps: the stamp of a row that is being written. Readers treat it as missing.
inline constexpr Step kWriting = Step::max();
inline constexpr Step kLastStep = kWriting - 1;

// How many slots from the front are consecutive. Blocks of a KV cache make long runs, and a run is
// one copy.
inline std::size_t run_length(std::span<const Slot> slots) {
  std::size_t n = 1;
  while (n < slots.size() && slots[n] == slots[0] + static_cast<std::int64_t>(n)) ++n;
  return n;
}
// The same for slots that are not marked, of which slots[0] is one.
inline std::size_t run_length(std::span<const MarkedSlot> slots) {
  std::size_t n = 1;
  const Slot first = slots[0].slot();
  while (n < slots.size() && slots[n] == MarkedSlot(first + static_cast<std::int64_t>(n))) ++n;
  return n;
}

// The sizes that a list and the memory beside it are checked against.
struct SlotLimits {
  std::int64_t num_slots;
  std::size_t row_bytes;  // size of a narrow row

  bool exists(Slot slot) const {
    return static_cast<std::uint64_t>(slot.value()) < static_cast<std::uint64_t>(num_slots);
  }
};

// For rows to be written. RangeError for more than max_rows, or a slot outside the buffer.
// ArgumentError for a wrong number of bytes.
void check_write(const SlotLimits& limits, std::int64_t max_rows, std::span<const MarkedSlot> slots,
                 std::size_t rows_bytes);

// Throws ArgumentError: the slot slots[index] came earlier in the list.
[[noreturn]] void throw_twice(std::span<const MarkedSlot> slots, std::size_t index);

// The stamp of slots[index] is kWriting although no write is in progress. Throws as above if the
// slot comes twice in the list, otherwise MismatchError.
[[noreturn]] void throw_marked(std::span<const MarkedSlot> slots, std::size_t index);

// The checks of SlotReadTransport::put.
void check_put(const SlotLimits& limits, Step step, std::span<const Slot> slots,
               std::size_t rows_bytes, std::size_t num_states);

// The checks of SlotReadTransport::read, without and with those of the slots themselves.
void check_read_sizes(std::size_t num_slots, std::size_t num_windows, std::size_t rows_bytes,
                      std::size_t num_states, std::size_t row_bytes);
void check_read(const SlotLimits& limits, std::span<const Slot> slots, std::size_t num_windows,
                std::size_t rows_bytes, std::size_t num_states);

// StateError for a window that ends after `last_step`, the last step whose outcome is known: until
// the end arrives, it could overwrite a row that looks present. Allowed are an open end, which asks
// only for what has arrived, and a window of one step, which asks for that step's row, present or
// not.
void check_arrived(std::span<const StepWindow> windows, Step last_step);

}  // namespace moetap
