#include "slot_buffer.h"

#include <moetap/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>

namespace moetap {
namespace {

// The stamp of a row that is being written. No step: readers take it for missing.
constexpr Step kWriting = std::numeric_limits<Step>::max();

// Slots ahead of the copy whose memory is fetched: a few hundred nanoseconds' worth of copying.
constexpr std::size_t kAhead = 8;

std::size_t stamp_bytes(std::int64_t num_slots) {
  return (static_cast<std::size_t>(num_slots) * sizeof(Step) + 63) / 64 * 64;
}

// Whether a process dies between two stores is up to the kernel; their order is up to us. The
// compiler must not move stores across, and a processor has retired all that came before.
void order_stores() { std::atomic_thread_fence(std::memory_order_release); }

template <class Decode>
void check_range(std::span<const Slot> slots, std::int64_t num_slots, Decode decode) {
  const auto limit = static_cast<std::uint64_t>(num_slots);
  std::uint64_t bad = 0;
  for (const Slot slot : slots) bad |= static_cast<std::uint64_t>(decode(slot)) >= limit;
  if (bad == 0) return;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const Slot slot = decode(slots[i]);
    if (slot < 0 || slot >= num_slots) {
      throw RangeError(
          fmt::format("slot {} (number {} of {}) is outside the buffer's {} slots: configure both "
                      "ends with num_slots = num_blocks * block_size of the anchor KV-cache group",
                      slot, i, slots.size(), num_slots));
    }
  }
}

// Fetches a row into the cache, to be written (kWrite) or read.
template <int kWrite>
void prefetch_row(const std::byte* row, std::size_t bytes) {
  for (std::size_t offset = 0; offset < bytes; offset += 64) {
    __builtin_prefetch(row + offset, kWrite, 2);
  }
}

RowState state_of(Step stamp, const StepWindow& window) {
  return row_state(stamp == kWriting ? 0 : stamp, window);
}

}  // namespace

void check_slots(std::span<const Slot> slots, std::int64_t num_slots) {
  check_range(slots, num_slots, [](Slot slot) { return slot; });
}

void check_stored_slots(std::span<const Slot> stored, std::int64_t num_slots) {
  check_range(stored, num_slots, decode_slot);
}

void check_read_sizes(std::size_t slots, std::size_t windows, std::size_t rows, std::size_t states,
                      std::size_t row_bytes) {
  if (windows != 1 && windows != slots) {
    throw ArgumentError(fmt::format(
        "read of {} slots with {} windows: give one for all or one a slot", slots, windows));
  }
  if (states != slots || rows != slots * row_bytes) {
    throw ArgumentError(fmt::format(
        "read of {} slots into {} bytes and {} states: {} bytes and {} states are needed", slots,
        rows, states, slots * row_bytes, slots));
  }
}

std::size_t SlotBuffer::bytes(std::int64_t num_slots, std::size_t row_bytes) {
  return stamp_bytes(num_slots) + static_cast<std::size_t>(num_slots) * row_bytes;
}

SlotBuffer::SlotBuffer(std::span<std::byte> memory, std::int64_t num_slots, std::size_t row_bytes,
                       std::int64_t max_rows)
    : stamps_(reinterpret_cast<Step*>(memory.data())),
      rows_(memory.data() + stamp_bytes(num_slots)),
      num_slots_(num_slots),
      row_bytes_(row_bytes),
      saved_(static_cast<std::size_t>(max_rows)) {
  if (memory.size() < bytes(num_slots, row_bytes) ||
      reinterpret_cast<std::uintptr_t>(memory.data()) % 64 != 0) {
    throw ArgumentError(fmt::format("a slot buffer needs {} bytes, 64-byte aligned, not {}",
                                    bytes(num_slots, row_bytes), memory.size()));
  }
}

void SlotBuffer::scatter(Step step, std::span<const Slot> slots, std::span<const std::byte> rows) {
  if (step == 0 || step == kWriting) {
    throw ArgumentError(fmt::format("{} is no step number: use 1 to {}", step, kWriting - 1));
  }
  if (slots.size() > saved_.size()) {
    throw RangeError(fmt::format("{} rows in a step, but at most {} (max_tokens) were configured",
                                 slots.size(), saved_.size()));
  }
  if (rows.size() != slots.size() * row_bytes_) {
    throw ArgumentError(fmt::format("{} bytes of rows for {} slots: {} bytes are needed",
                                    rows.size(), slots.size(), slots.size() * row_bytes_));
  }
  check_stored_slots(slots, num_slots_);
  mark(slots);
  order_stores();
  copy_in(slots, rows.data());
  order_stores();
  stamp(step, slots);
}

// Takes the stamps away; one that was taken already belongs to a slot that comes twice.
void SlotBuffer::mark(std::span<const Slot> slots) {
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const Slot ahead = slots[std::min(i + kAhead, slots.size() - 1)];
    __builtin_prefetch(&stamps_[decode_slot(ahead)], 1, 2);
    Step& current = stamps_[decode_slot(slots[i])];
    if (current == kWriting) {
      for (std::size_t j = 0; j < i; ++j) stamps_[decode_slot(slots[j])] = saved_[j];
      throw ArgumentError(
          fmt::format("slot {} comes twice in a step (the second time as number {} of {}): each "
                      "token of a step "
                      "has a slot of its own",
                      decode_slot(slots[i]), i, slots.size()));
    }
    saved_[i] = current;
    current = kWriting;
  }
}

void SlotBuffer::copy_in(std::span<const Slot> slots, const std::byte* rows) {
  for (std::size_t i = 0; i < slots.size();) {
    if (slots[i] < 0) {  // missing anyway
      ++i;
      continue;
    }
    const std::size_t run = run_length(slots.subspan(i));
    if (i + run + kAhead <= slots.size()) {
      const Slot ahead = decode_slot(slots[i + run + kAhead - 1]);
      prefetch_row<1>(rows_ + static_cast<std::size_t>(ahead) * row_bytes_, row_bytes_);
    }
    std::memcpy(rows_ + static_cast<std::size_t>(slots[i]) * row_bytes_, rows + i * row_bytes_,
                run * row_bytes_);
    i += run;
  }
}

void SlotBuffer::stamp(Step step, std::span<const Slot> slots) {
  for (const Slot slot : slots) stamps_[decode_slot(slot)] = slot < 0 ? 0 : step;
}

void SlotBuffer::invalidate(std::span<const Slot> slots) {
  for (const Slot stored : slots) {
    if (const Slot slot = decode_slot(stored); slot < num_slots_) stamps_[slot] = 0;
  }
}

void SlotBuffer::gather(std::span<const Slot> slots, std::span<const StepWindow> windows,
                        std::span<std::byte> rows, std::span<RowState> states) const {
  check_read_sizes(slots.size(), windows.size(), rows.size(), states.size(), row_bytes_);
  check_slots(slots, num_slots_);
  const bool one_window = windows.size() == 1;
  for (std::size_t i = 0; i < slots.size();) {
    const std::size_t run = run_length(slots.subspan(i));
    if (i + run + kAhead <= slots.size()) {
      const Slot ahead = slots[i + run + kAhead - 1];
      __builtin_prefetch(&stamps_[ahead], 0, 2);
      prefetch_row<0>(rows_ + static_cast<std::size_t>(ahead) * row_bytes_, row_bytes_);
    }
    const Step* stamps = stamps_ + slots[i];
    bool all_present = true;
    for (std::size_t j = 0; j < run; ++j) {
      states[i + j] = state_of(stamps[j], windows[one_window ? 0 : i + j]);
      all_present &= states[i + j] == RowState::present;
    }
    std::byte* out = rows.data() + i * row_bytes_;
    const std::byte* in = rows_ + static_cast<std::size_t>(slots[i]) * row_bytes_;
    if (all_present) {
      std::memcpy(out, in, run * row_bytes_);
    } else {
      for (std::size_t j = 0; j < run; ++j, out += row_bytes_, in += row_bytes_) {
        if (states[i + j] == RowState::present) {
          std::memcpy(out, in, row_bytes_);
        } else {
          std::memset(out, 0xFF, row_bytes_);
        }
      }
    }
    i += run;
  }
}

}  // namespace moetap
