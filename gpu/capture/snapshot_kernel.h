// The kernel that makes a step's record from the captured routes, in one launch.
#pragma once

#include <cstdint>

#include "gpu/capture/kernels.h"
#include "lib/internal/step_record.h"

namespace moetap {

// Replaces a slot that does not exist in a record. Readers take it neither for a real slot nor for
// a marked one.
inline constexpr MarkedSlot kBadSlot(Slot::max());

namespace kernels {

// Whether all `blocks` of the grid have reached this point; all their earlier writes are then
// visible. Each lane of each block calls it once. It is true for the lanes of one block on a GPU,
// and for one lane on a host, where `block` is set to that single lane. `count` is 0 before and
// after.
MOETAP_DEVICE inline bool last_to_finish(std::uint32_t& count, Block& block, std::uint32_t blocks) {
#if defined(__CUDA_ARCH__)
  __shared__ bool last;
  __syncthreads();  // orders the block's writes before its count
  if (block.lane == 0) {
    __threadfence();
    last = atomicInc(&count, blocks - 1) == blocks - 1;  // which makes it 0 again
    __threadfence();  // orders other blocks' writes, which precede their counts, before what
                      // follows
  }
  __syncthreads();
  return last;
#else
  const auto all = blocks * static_cast<std::uint32_t>(block.lanes);
  if (__atomic_add_fetch(&count, 1U, __ATOMIC_ACQ_REL) != all) return false;
  __atomic_store_n(&count, 0U, __ATOMIC_RELAXED);
  block = {block.index, 0, 1};
  return true;
#endif
}

// On a host, prefetches n ids that the next block will read: the layers are too far apart for the
// hardware prefetcher. Harmless past the end of the cache.
template <class T>
MOETAP_DEVICE inline void prefetch([[maybe_unused]] const T* ids, [[maybe_unused]] std::int64_t n) {
#if !defined(__CUDA_ARCH__)
  constexpr std::int64_t kLine = 64 / sizeof(T);
  for (std::int64_t i = 0; i < n; i += kLine) __builtin_prefetch(ids + i, 0, 2);
#endif
}

// Narrows eight ids: one vector load, pack and store.
template <class From, class To>
MOETAP_DEVICE inline void narrow8(const From* __restrict__ from, To* __restrict__ to) {
#if defined(__CUDA_ARCH__)
  if (aligned(from) && aligned(to)) {
    narrow_eight(from, to);
    return;
  }
#endif
  for (int i = 0; i < 8; ++i) to[i] = static_cast<To>(from[i]);
}

// Narrows the rows of one layer, `row_ids` apart in `to`. kTopK is top_k if known at compile time,
// otherwise 0.
template <int kTopK, class From, class To>
MOETAP_DEVICE inline void narrow_rows(const From* __restrict__ from, To* __restrict__ to,
                                      std::int64_t n, int top_k, std::int64_t row_ids) {
  if constexpr (kTopK > 0) top_k = kTopK;
  for (std::int64_t row = 0; row < n; ++row, from += top_k, to += row_ids) {
    if (top_k < 8) {
      for (int i = 0; i < top_k; ++i) to[i] = static_cast<To>(from[i]);
      continue;
    }
    // In groups of eight; the last overlaps the previous one if top_k is not a multiple of 8.
    for (int i = 0; i + 8 < top_k; i += 8) narrow8(from + i, to + i);
    narrow8(from + top_k - 8, to + top_k - 8);
  }
}

}  // namespace kernels

// The head of a record, and its sources: what the step's kernels found.
struct RecordHead {
  const std::uint64_t* captured;  // [layer]
  StepReport* report;
  Step* record_captured;
  std::int64_t wanted;  // tokens whose rows the record has; negative: all of the step's

  MOETAP_DEVICE void write(const DeviceStep& step, int num_layers, Block block) const {
    for (int layer = block.lane; layer < num_layers; layer += block.lanes) {
      record_captured[layer] = Step(captured[layer]);
    }
    if (block.lane != 0) return;
    report->step = Step(step.step);
    report->num_tokens = wanted < 0 ? step.num_tokens : wanted;
    report->step_tokens = step.num_tokens;
    report->fault = step.fault;
    report->fault_layer = step.fault_layer;
    report->fault_token = step.fault_token;
    report->fault_value = step.fault_value;
  }
};

// Makes a record, for all tokens or the wanted ones: transposes the cache to [row][layer][top_k],
// narrows it, copies the slot mapping, and finally writes the head. A block takes kTokens tokens:
// few enough that its reads and writes both stay in a core's cache.
template <class Id>
struct SnapshotKernel {
  static constexpr std::int64_t kTokens = 16;

  DeviceStep* step;
  const std::uint64_t* missing_step;
  const std::uint16_t* routes;
  const Slot* slot_mapping;
  const std::uint32_t* tokens;  // [row]: token of the row, ascending; null: row i is token i's
  MarkedSlot* slots;            // of the record, and its rows
  Id* rows;
  std::int64_t row_stride;  // ids between rows
  std::int64_t num_rows;
  std::int64_t max_tokens;
  std::int64_t num_slots;
  std::int32_t num_layers;
  std::int32_t top_k;
  std::uint32_t blocks;  // of this launch: at least one, which writes the head
  RecordHead head;

  MOETAP_DEVICE void operator()(Block block) const {
    take_slots(block);
    take_rows(block, routes, rows, row_stride);
    finish(block);
  }

  MOETAP_DEVICE void take_slots(Block block) const {
    const std::int64_t end = end_of(block);
    for (std::int64_t row = block.index * kTokens + block.lane; row < end; row += block.lanes) {
      slots[row] = checked_slot(token_of(row));
    }
  }

  // The block's rows of one part of the cache, `to_stride` elements apart in `to`.
  template <class From, class To>
  MOETAP_DEVICE void take_rows(Block block, const From* from, To* to,
                               std::int64_t to_stride) const {
    const std::int64_t begin = block.index * kTokens;
    const std::int64_t end = end_of(block);
    if (tokens == nullptr || block.lanes > 1) {
      return transpose_any(block, begin, end, from, to, to_stride);
    }
    for (std::int64_t first = begin, last = begin; first < end; first = last) {
      while (++last < end && tokens[last] == tokens[last - 1] + 1) {
      }
      transpose_any(block, first, last, from, to, to_stride);
    }
  }

  // The head is written after everything else, so that it has any block's fault.
  MOETAP_DEVICE void finish(Block block) const {
    if (kernels::last_to_finish(step->finished, block, blocks)) {
      head.write(*step, num_layers, block);
    }
  }

  MOETAP_DEVICE std::int64_t end_of(Block block) const {
    return kernels::at_most((block.index + 1) * kTokens, num_rows);
  }

 private:
  MOETAP_DEVICE std::int64_t token_of(std::int64_t row) const {
    return tokens == nullptr ? row : static_cast<std::int64_t>(tokens[row]);
  }

  MOETAP_DEVICE MarkedSlot checked_slot(std::int64_t token) const {
    const Slot slot = slot_mapping[token];
    if (slot < Slot() || slot >= Slot(num_slots)) {
      kernels::fault(*step, DeviceFault::slot, 0, token, slot.value());
      return kBadSlot;
    }
    return missing_step[token] == step->step ? MarkedSlot::missing(slot) : MarkedSlot(slot);
  }

  template <class From, class To>
  MOETAP_DEVICE void transpose_any(Block block, std::int64_t begin, std::int64_t end,
                                   const From* from, To* to, std::int64_t to_stride) const {
    if (top_k == 8) {
      transpose<8>(block, begin, end, from, to, to_stride);
    } else {
      transpose<0>(block, begin, end, from, to, to_stride);
    }
  }

  // Layers in the outer loop, tokens in the inner: layers are a power of two apart for most
  // max_tokens, so an inner loop over them would miss the cache each time. A single lane takes all
  // rows of successive tokens in one run.
  template <int kTopK, class From, class To>
  MOETAP_DEVICE void transpose(Block block, std::int64_t begin, std::int64_t end, const From* from,
                               To* to, std::int64_t to_stride) const {
    const std::int64_t run = block.lanes == 1 ? kTokens : 1;
    const std::int64_t runs = kTokens / run;
    for (std::int64_t i = block.lane; i < num_layers * runs; i += block.lanes) {
      const std::int64_t layer = i / runs;
      const std::int64_t row = begin + i % runs * run;
      if (row >= end) continue;
      const std::int64_t token = token_of(row);
      kernels::prefetch(from + (layer * max_tokens + token + kTokens) * top_k, run * top_k);
      kernels::narrow_rows<kTopK>(from + (layer * max_tokens + token) * top_k,
                                  to + row * to_stride + layer * top_k,
                                  kernels::at_most(run, end - row), top_k, to_stride);
    }
  }
};

}  // namespace moetap
