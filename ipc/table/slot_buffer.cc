#include "ipc/table/slot_buffer.h"

#include <moetap/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "ipc/internal/system_limits.h"
#include "lib/internal/injection.h"
#include "lib/internal/number_format.h"

namespace moetap {
namespace {

// The number of slots whose memory is prefetched ahead of the copy: a few hundred nanoseconds of
// copying.
constexpr std::size_t kAhead = 8;
constexpr std::size_t kMostAhead = 4096;  // bytes, of a run

std::size_t stamp_bytes(std::int64_t num_slots) {
  const std::size_t stamps = (static_cast<std::size_t>(num_slots) + 1) * sizeof(Step);
  return (stamps + sizeof(LostSteps) + 63) / 64 * 64;
}

// Orders a row before its stamp, for a writer that dies in between.
void order_stores() { std::atomic_thread_fence(std::memory_order_release); }

// Fetches a row into the cache, to be written (kWrite) or read.
template <int kWrite>
void prefetch_row(const std::byte* row, std::size_t bytes) {
  for (std::size_t offset = 0; offset < bytes; offset += 64) {
    __builtin_prefetch(row + offset, kWrite, 2);
  }
}

void copy_present(std::span<const RowState> states, std::size_t row_bytes, const std::byte* from,
                  std::byte* to) {
  for (const RowState state : states) {
    if (state == RowState::present) {
      std::memcpy(to, from, row_bytes);
    } else {
      std::memset(to, 0xFF, row_bytes);
    }
    from += row_bytes;
    to += row_bytes;
  }
}

}  // namespace

std::size_t SlotBuffer::bytes(std::int64_t num_slots, std::size_t row_bytes) {
  return stamp_bytes(num_slots) + static_cast<std::size_t>(num_slots) * row_bytes;
}

SlotBuffer::SlotBuffer(std::span<std::byte> memory, std::int64_t num_slots, std::size_t row_bytes,
                       std::int64_t max_rows)
    : limits_{num_slots, row_bytes},
      stamps_(reinterpret_cast<Step*>(memory.data())),
      lost_(reinterpret_cast<LostSteps*>(stamps_ + num_slots + 1)),
      rows_(memory.data() + stamp_bytes(num_slots)),
      saved_(allocated("the writer's slot buffer, for max_tokens stamps,",
                       static_cast<std::size_t>(max_rows) * sizeof(Step),
                       [&] { return std::vector<Step>(static_cast<std::size_t>(max_rows)); })) {
  if (memory.size() < bytes(num_slots, row_bytes) ||
      reinterpret_cast<std::uintptr_t>(memory.data()) % 64 != 0) {
    throw ArgumentError(fmt::format("a slot buffer needs {} bytes, 64-byte aligned, not {}",
                                    bytes(num_slots, row_bytes), memory.size()));
  }
}

void SlotBuffer::scatter(Step step, std::span<const MarkedSlot> slots,
                         std::span<const std::byte> rows) {
  copy_in(step, slots, rows);
  stamp(step, slots);
}

void SlotBuffer::copy_in(Step step, std::span<const MarkedSlot> slots,
                         std::span<const std::byte> rows) {
  if (step == 0 || step == kWriting) {
    throw ArgumentError(fmt::format("{} is no step number: use 1 to {}", step, kLastStep));
  }
  check_write(limits_, static_cast<std::int64_t>(saved_.size()), slots, rows.size());
  mark(slots);
  MOETAP_POINT("scatter marked");
  order_stores();
  copy_rows(slots, rows.data());
  MOETAP_POINT("scatter copied");
}

void SlotBuffer::stamp(Step step, std::span<const MarkedSlot> slots) {
  order_stores();
  for (const MarkedSlot slot : slots) {
    set_stamp(slot.slot(), slot.is_missing() ? Step() : step);
    MOETAP_POINT("scatter stamping");
  }
  MOETAP_POINT("scatter stamped");
}

void SlotBuffer::put_in(Step step, std::span<const Slot> slots, std::span<const std::byte> rows,
                        std::span<const RowState> states) {
  const std::byte* from = rows.data();
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const Slot slot = slots[i];
    const bool stored = states.empty() || has_routes(states[i]);
    const Step current = stamp_of(slot);
    if (current <= step || current == kWriting) {
      set_stamp(slot, 0);
      MOETAP_POINT("put marked");
      order_stores();
      if (stored) std::memcpy(row(slot), from, limits_.row_bytes);
      MOETAP_POINT("put copied");
      order_stores();
      if (stored) set_stamp(slot, step);
      MOETAP_POINT("put stamped");
    }
    from += limits_.row_bytes;
  }
}

// Replaces the stamps by kWriting. One that already is kWriting belongs to a slot that comes twice,
// or was not written by us.
void SlotBuffer::mark(std::span<const MarkedSlot> slots) {
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const Slot slot = slots[i].slot();
    saved_[i] = stamp_of(slot);
    if (saved_[i] == kWriting) {
      for (std::size_t j = 0; j < i; ++j) set_stamp(slots[j].slot(), saved_[j]);
      throw_marked(slots, i);
    }
    set_stamp(slot, kWriting);
    MOETAP_POINT("scatter marking");
  }
}

void SlotBuffer::copy_rows(std::span<const MarkedSlot> slots, const std::byte* rows) {
  const std::size_t row_bytes = limits_.row_bytes;
  for (std::size_t i = 0; i < slots.size();) {
    if (slots[i].is_missing()) {  // its bytes do not matter
      ++i;
      continue;
    }
    const std::size_t run = run_length(slots.subspan(i));
    if (i + run + kAhead <= slots.size()) {
      prefetch_row<1>(row(slots[i + run + kAhead - 1].slot()), row_bytes);
    }
    std::memcpy(row(slots[i].slot()), rows + i * row_bytes, run * row_bytes);
    MOETAP_POINT("scatter copying");
    i += run;
  }
}

// As mark(), which finds slots that come twice.
bool SlotBuffer::invalidate(std::span<const MarkedSlot> slots) {
  bool are_all = true;
  for (const MarkedSlot marked : slots) {
    const Slot slot = marked.slot();
    are_all = are_all && limits_.exists(slot) && stamp_of(slot) != kWriting;
    if (limits_.exists(slot)) set_stamp(slot, kWriting);
    MOETAP_POINT("fail invalidating");
  }
  for (const MarkedSlot marked : slots) {
    if (limits_.exists(marked.slot())) set_stamp(marked.slot(), 0);
  }
  return are_all;
}

void SlotBuffer::lose(Step first, Step last) {
  const Step before = last_step();
  if (last > before) lost_->add(first, last, before);
}

void SlotBuffer::set_last_step(Step step) {
  std::atomic_ref(stamps_[limits_.num_slots]).store(step, std::memory_order_release);
}

Step SlotBuffer::last_step() const {
  return std::atomic_ref(stamps_[limits_.num_slots]).load(std::memory_order_acquire);
}

RowState SlotBuffer::state_of(Step stamp, StepWindow window) const {
  if (MOETAP_OFF("H9 rows from before the window")) window.first = 1;
  if (MOETAP_OFF("H11 rows from before the window")) window.last = StepWindow{}.last;
  const Step lost =
      MOETAP_OFF("H36 rows from before a dropped step") ? Step() : lost_->last_in(window);
  window.first = std::max(window.first, lost);
  const RowState state = row_state(stamp == kWriting ? Step() : stamp, window);
  // Not known to be an earlier owner's.
  return state == RowState::stale && lost != 0 ? RowState::missing : state;
}

// Reads the stamps and states of all rows first, so that the cache misses of the stamps overlap.
// Returns whether every row is present.
bool SlotBuffer::look_up(std::span<const Slot> slots, std::span<const StepWindow> windows,
                         std::span<RowState> states) const {
  // Nearly always all are present, which is found without a branch per row.
  const std::size_t stride = windows.size() == 1 ? 0 : 1;
  bool all_present = true;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const Step stamp = stamp_of(slots[i]);
    const StepWindow& window = windows[i * stride];
    all_present &=
        (stamp != 0) & (stamp != kWriting) & (stamp >= window.first) & (stamp <= window.last);
  }
  if (all_present && !lost_->any()) {
    std::ranges::fill(states, RowState::present);
    return true;
  }
  all_present = true;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    states[i] = state_of(stamp_of(slots[i]), windows[i * stride]);
    all_present &= states[i] == RowState::present;
  }
  return all_present;
}

void SlotBuffer::gather(std::span<const Slot> slots, std::span<const StepWindow> windows,
                        std::span<std::byte> rows, std::span<RowState> states) const {
  check_read(limits_, slots, windows.size(), rows.size(), states.size());
  const bool all_present = look_up(slots, windows, states);
  const std::size_t row_bytes = limits_.row_bytes;
  for (std::size_t i = 0; i < slots.size();) {
    const std::size_t run = run_length(slots.subspan(i));
    if (run >= kAhead && i + run < slots.size()) {
      // Fetches its beginning; the hardware prefetcher continues.
      prefetch_row<0>(row(slots[i + run]), std::min(kAhead * row_bytes, kMostAhead));
    } else if (i + run + kAhead <= slots.size()) {
      prefetch_row<0>(row(slots[i + run + kAhead - 1]), row_bytes);
    }
    std::byte* to = rows.data() + i * row_bytes;
    if (all_present) {
      std::memcpy(to, row(slots[i]), run * row_bytes);
    } else {
      copy_present(states.subspan(i, run), row_bytes, row(slots[i]), to);
    }
    i += run;
  }
}

void SlotBuffer::stamps(std::span<const Slot> slots, std::span<Step> written) const {
  check_read(limits_, slots, 1, slots.size() * limits_.row_bytes, written.size());
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const Step stamp = stamp_of(slots[i]);
    written[i] = stamp == kWriting ? Step() : stamp;
  }
}

void SlotBuffer::point_at(std::span<const Slot> slots, std::span<const StepWindow> windows,
                          std::span<const std::byte*> rows, std::span<RowState> states) const {
  for (std::size_t i = 0; i < slots.size(); ++i) {
    states[i] = state_of(stamp_of(slots[i]), windows[windows.size() == 1 ? 0 : i]);
    rows[i] = states[i] == RowState::present ? row(slots[i]) : nullptr;
  }
}

}  // namespace moetap
