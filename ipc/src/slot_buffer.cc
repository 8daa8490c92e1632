#include "slot_buffer.h"

#include <moetap/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "../../lib/src/injection.h"

namespace moetap {
namespace {

// Slots ahead of the copy whose memory is fetched: a few hundred nanoseconds' worth of copying.
constexpr std::size_t kAhead = 8;
constexpr std::size_t kMostAhead = 4096;  // bytes, of a run

std::size_t stamp_bytes(std::int64_t num_slots) {
  return ((static_cast<std::size_t>(num_slots) + 1) * sizeof(Step) + 63) / 64 * 64;
}

// What a process that dies between two stores leaves behind is up to their order. Only the compiler
// could change it: the processor has done all that came before, and nothing of what comes after.
void order_stores() { std::atomic_signal_fence(std::memory_order_seq_cst); }

// Fetches a row into the cache, to be written (kWrite) or read.
template <int kWrite>
void prefetch_row(const std::byte* row, std::size_t bytes) {
  for (std::size_t offset = 0; offset < bytes; offset += 64) {
    __builtin_prefetch(row + offset, kWrite, 2);
  }
}

RowState state_of(Step stamp, StepWindow window) {
  if (MOETAP_OFF("H9 rows from before the window")) window.first = 1;
  if (MOETAP_OFF("H11 rows from behind the window")) window.last = StepWindow{}.last;
  return row_state(stamp == kWriting ? 0 : stamp, window);
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
      rows_(memory.data() + stamp_bytes(num_slots)),
      saved_(static_cast<std::size_t>(max_rows)) {
  if (memory.size() < bytes(num_slots, row_bytes) ||
      reinterpret_cast<std::uintptr_t>(memory.data()) % 64 != 0) {
    throw ArgumentError(fmt::format("a slot buffer needs {} bytes, 64-byte aligned, not {}",
                                    bytes(num_slots, row_bytes), memory.size()));
  }
}

void SlotBuffer::scatter(Step step, std::span<const Slot> slots, std::span<const std::byte> rows) {
  copy_in(step, slots, rows);
  stamp(step, slots);
}

void SlotBuffer::copy_in(Step step, std::span<const Slot> slots, std::span<const std::byte> rows) {
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

void SlotBuffer::stamp(Step step, std::span<const Slot> slots) {
  order_stores();
  for (const Slot slot : slots) {
    stamps_[decode_slot(slot)] = slot < 0 ? 0 : step;
    MOETAP_POINT("scatter stamping");
  }
  MOETAP_POINT("scatter stamped");
}

void SlotBuffer::put_in(Step step, std::span<const Slot> slots, std::span<const std::byte> rows) {
  const std::byte* from = rows.data();
  for (const Slot stored : slots) {
    const Slot slot = decode_slot(stored);
    Step& current = stamps_[slot];
    if (current <= step || current == kWriting) {
      current = 0;
      MOETAP_POINT("put marked");
      order_stores();
      if (stored >= 0) std::memcpy(row(slot), from, limits_.row_bytes);
      MOETAP_POINT("put copied");
      order_stores();
      if (stored >= 0) current = step;
      MOETAP_POINT("put stamped");
    }
    from += limits_.row_bytes;
  }
}

// Takes the stamps away; one that was taken already belongs to a slot that comes twice, or is none
// of ours.
void SlotBuffer::mark(std::span<const Slot> slots) {
  for (std::size_t i = 0; i < slots.size(); ++i) {
    Step& current = stamps_[decode_slot(slots[i])];
    if (current == kWriting) {
      for (std::size_t j = 0; j < i; ++j) stamps_[decode_slot(slots[j])] = saved_[j];
      throw_marked(slots, i);
    }
    saved_[i] = current;
    current = kWriting;
    MOETAP_POINT("scatter marking");
  }
}

void SlotBuffer::copy_rows(std::span<const Slot> slots, const std::byte* rows) {
  const std::size_t row_bytes = limits_.row_bytes;
  for (std::size_t i = 0; i < slots.size();) {
    if (slots[i] < 0) {  // missing anyway
      ++i;
      continue;
    }
    const std::size_t run = run_length(slots.subspan(i));
    if (i + run + kAhead <= slots.size()) {
      prefetch_row<1>(row(decode_slot(slots[i + run + kAhead - 1])), row_bytes);
    }
    std::memcpy(row(slots[i]), rows + i * row_bytes, run * row_bytes);
    MOETAP_POINT("scatter copying");
    i += run;
  }
}

void SlotBuffer::invalidate(std::span<const Slot> slots) {
  for (const Slot stored : slots) {
    if (const Slot slot = decode_slot(stored); slot < limits_.num_slots) stamps_[slot] = 0;
    MOETAP_POINT("fail invalidating");
  }
}

void SlotBuffer::set_last_step(Step step) {
  std::atomic_ref(stamps_[limits_.num_slots]).store(step, std::memory_order_release);
}

Step SlotBuffer::last_step() const {
  return std::atomic_ref(stamps_[limits_.num_slots]).load(std::memory_order_acquire);
}

void SlotBuffer::gather(std::span<const Slot> slots, std::span<const StepWindow> windows,
                        std::span<std::byte> rows, std::span<RowState> states) const {
  check_read(limits_, slots, windows.size(), rows.size(), states.size());
  copy_out(slots, windows, rows, states);
}

void SlotBuffer::copy_out(std::span<const Slot> slots, std::span<const StepWindow> windows,
                          std::span<std::byte> rows, std::span<RowState> states) const {
  const bool all_present = look_up(slots, windows, states);
  const std::size_t row_bytes = limits_.row_bytes;
  for (std::size_t i = 0; i < slots.size();) {
    const std::size_t run = run_length(slots.subspan(i));
    if (run >= kAhead && i + run < slots.size()) {
      // Its beginning; the processor sees for itself that it goes on.
      prefetch_row<0>(row(slots[i + run]), std::min(kAhead * row_bytes, kMostAhead));
    } else if (i + run + kAhead <= slots.size()) {
      prefetch_row<0>(row(slots[i + run + kAhead - 1]), row_bytes);
    }
    if (all_present) {
      std::memcpy(rows.data() + i * row_bytes, row(slots[i]), run * row_bytes);
    } else {
      copy_present(states.subspan(i, run), row_bytes, row(slots[i]), rows.data() + i * row_bytes);
    }
    i += run;
  }
}

// The states of all rows first, so that the cache misses of the stamps overlap. Returns whether
// every row is present.
bool SlotBuffer::look_up(std::span<const Slot> slots, std::span<const StepWindow> windows,
                         std::span<RowState> states) const {
  // Nearly always all are, which takes no branch to find.
  const std::size_t stride = windows.size() == 1 ? 0 : 1;
  bool all_present = true;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const Step stamp = stamps_[slots[i]];
    const StepWindow& window = windows[i * stride];
    all_present &=
        (stamp != 0) & (stamp != kWriting) & (stamp >= window.first) & (stamp <= window.last);
  }
  if (all_present) {
    std::ranges::fill(states, RowState::present);
  } else {
    for (std::size_t i = 0; i < slots.size(); ++i) {
      states[i] = state_of(stamps_[slots[i]], windows[i * stride]);
    }
  }
  return all_present;
}

void SlotBuffer::stamps(std::span<const Slot> slots, std::span<Step> written) const {
  check_read(limits_, slots, 1, slots.size() * limits_.row_bytes, written.size());
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const Step stamp = stamps_[slots[i]];
    written[i] = stamp == kWriting ? 0 : stamp;
  }
}

void SlotBuffer::point_at(std::span<const Slot> slots, std::span<const StepWindow> windows,
                          std::span<const std::byte*> rows, std::span<RowState> states) const {
  for (std::size_t i = 0; i < slots.size(); ++i) {
    states[i] = state_of(stamps_[slots[i]], windows[windows.size() == 1 ? 0 : i]);
    rows[i] = states[i] == RowState::present ? row(slots[i]) : nullptr;
  }
}

}  // namespace moetap
