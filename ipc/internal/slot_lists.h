// Lists of slots as the transports get them: what they must satisfy, and the runs in them.
#pragma once

#include <moetap/types.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace moetap {

// Above all steps: the stamp of a row that is being written, which readers take for missing.
inline constexpr Step kWriting = std::numeric_limits<Step>::max();
inline constexpr Step kLastStep = kWriting - 1;

// The slot that a writer's list means: ~slot is stored for a row with a missing route.
constexpr Slot decode_slot(Slot stored) { return stored < 0 ? ~stored : stored; }

// How many slots from the front follow each other: blocks of a KV cache make long runs, and a run
// is one copy.
inline std::size_t run_length(std::span<const Slot> slots) {
  std::size_t n = 1;
  while (n < slots.size() && slots[n] == slots[0] + static_cast<Slot>(n)) ++n;
  return n;
}

// The sizes that a list and the memory beside it are checked against.
struct SlotLimits {
  std::int64_t num_slots;
  std::size_t row_bytes;  // of a narrow row
};

// For rows to be written: RangeError for more than max_rows or a slot outside the buffer,
// ArgumentError for another number of bytes.
void check_write(const SlotLimits& limits, std::int64_t max_rows, std::span<const Slot> stored,
                 std::size_t rows_bytes);

// The slot stored[index] has come before in the list: ArgumentError.
[[noreturn]] void throw_twice(std::span<const Slot> stored, std::size_t index);

// The stamp of stored[index] is kWriting where nobody writes: as above if the list is to blame,
// else MismatchError.
[[noreturn]] void throw_marked(std::span<const Slot> stored, std::size_t index);

// As SlotReadTransport::put says.
void check_put(const SlotLimits& limits, Step step, std::span<const Slot> stored,
               std::size_t rows_bytes);

// As SlotReadTransport::read says.
void check_read(const SlotLimits& limits, std::span<const Slot> slots, std::size_t num_windows,
                std::size_t rows_bytes, std::size_t num_states);

// StateError for a window that ends with a step after `last_step`, the last whose outcome is known:
// that step may rewrite a row that looks present until it arrives. An open end asks for no more
// than what has arrived, and a window of one step for that step's row alone, present or not.
void check_arrived(std::span<const StepWindow> windows, Step last_step);

}  // namespace moetap
