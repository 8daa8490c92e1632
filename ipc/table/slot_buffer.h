// Rows by slot, each with the stamp of the step that wrote it.
#pragma once

#include <moetap/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ipc/internal/slot_lists.h"
#include "ipc/table/lost_steps.h"

namespace moetap {

// A view of shared or private memory, which it does not own: [stamps: num_slots x uint64][last
// step: uint64][LostSteps, padded to 64][rows: num_slots x row_bytes]. Zero-filled memory is an
// empty buffer. Callers must ensure that there are no concurrent calls. Only the constructor
// allocates. The order of its stores is checked in test/model (stamps).
class SlotBuffer {
 public:
  static std::size_t bytes(std::int64_t num_slots, std::size_t row_bytes);

  // max_rows: the maximum for one scatter(), 0 for gathering only. `memory` is 64-byte aligned and
  // has bytes() bytes.
  SlotBuffer(std::span<std::byte> memory, std::int64_t num_slots, std::size_t row_bytes,
             std::int64_t max_rows);

  const SlotLimits& limits() const { return limits_; }

  // Stores rows[i] as the row of slots[i], with the stamp `step`. A row whose slot is marked
  // becomes missing. A call that throws has changed nothing. RangeError for a slot outside
  // the buffer or too many slots. ArgumentError for a slot that comes twice, sizes that do not
  // match, or a step that cannot be a stamp. MismatchError for a stamp that our writers cannot have
  // left. A process that dies during the call leaves missing rows, never torn ones.
  void scatter(Step step, std::span<const MarkedSlot> slots, std::span<const std::byte> rows);

  // The two halves of scatter(), for callers that must check something in between. After the first
  // the rows are stored, but missing for all readers. Either stamp() or invalidate() must follow.
  void copy_in(Step step, std::span<const MarkedSlot> slots, std::span<const std::byte> rows);
  void stamp(Step step, std::span<const MarkedSlot> slots);

  // Records that the steps from `first` to `last` have no rows, and may have written to any slot.
  // In a window that includes one of them, rows of earlier steps are missing: they may be outdated.
  // Does nothing for steps up to last_step(). set_last_step(last) must follow.
  void lose(Step first, Step last);

  // The last step whose outcome is in the buffer, stored by the writer after that step's stamps. It
  // lies next to the stamps, and is as trustworthy as they are. Any thread, without a lock.
  void set_last_step(Step step);
  Step last_step() const;

  // See SlotReadTransport::stamps.
  void stamps(std::span<const Slot> slots, std::span<Step> written) const;

  // See SlotReadTransport::lend, for callers that have called check_read().
  void point_at(std::span<const Slot> slots, std::span<const StepWindow> windows,
                std::span<const std::byte*> rows, std::span<RowState> states) const;

  // See SlotReadTransport::put, for callers that have called check_put(). Leaves no stamp that a
  // later scatter() would refuse, since a process other than scatter()'s may die during the call.
  void put_in(Step step, std::span<const Slot> slots, std::span<const std::byte> rows,
              std::span<const RowState> states);

  // Makes the rows of those `slots` that exist missing (including marked ones). Returns
  // whether each exists and comes once. If not, the step's real slots are not known.
  bool invalidate(std::span<const MarkedSlot> slots);

  // See SlotReadTransport::read.
  void gather(std::span<const Slot> slots, std::span<const StepWindow> windows,
              std::span<std::byte> rows, std::span<RowState> states) const;

 private:
  void mark(std::span<const MarkedSlot> slots);
  void copy_rows(std::span<const MarkedSlot> slots, const std::byte* rows);
  RowState state_of(Step stamp, StepWindow window) const;
  bool look_up(std::span<const Slot> slots, std::span<const StepWindow> windows,
               std::span<RowState> states) const;
  Step stamp_of(Slot slot) const {
    return std::atomic_ref(stamps_[slot.value()]).load(std::memory_order_relaxed);
  }
  void set_stamp(Slot slot, Step step) {
    std::atomic_ref(stamps_[slot.value()]).store(step, std::memory_order_relaxed);
  }
  std::byte* row(Slot slot) const {
    return rows_ + static_cast<std::size_t>(slot.value()) * limits_.row_bytes;
  }

  SlotLimits limits_;
  Step* stamps_;
  LostSteps* lost_;
  std::byte* rows_;
  std::vector<Step> saved_;  // stamps to restore when scatter() finds a slot twice
};

}  // namespace moetap
