// The kernels of a step: begin, capture (one a layer), snapshot, report. Both compilers take them;
// see <moetap/kernel.h> for the rules, and device_cache.cc for the memory they work on.
#pragma once

#include <moetap/kernel.h>
#include <moetap/step_record.h>

#include <cstdint>
#include <limits>
#include <type_traits>

#include "../../lib/src/injection.h"

namespace moetap {

// The open step, in device memory at an address that graphs can hold.
struct DeviceStep {
  std::uint64_t step = 0;
  std::int64_t num_tokens = 0;
  std::int64_t dp_row = 0;
  // The first fault. `fault` is claimed by compare-and-swap; the rest is its claimer's to write,
  // and is read by a later kernel only.
  std::uint32_t fault = 0;
  std::int32_t fault_layer = 0;
  std::int64_t fault_token = 0;
  std::int64_t fault_value = 0;
};

// Stands in a record for a slot that does not exist, so that no reader takes it for a real one or
// for the complement of one.
inline constexpr Slot kBadSlot = std::numeric_limits<Slot>::max();

namespace kernels {

// True for one caller only, until the word is 0 again.
MOETAP_DEVICE inline bool claim(std::uint32_t& word, std::uint32_t value) {
#if defined(__CUDA_ARCH__)
  return atomicCAS(&word, 0u, value) == 0u;
#else
  std::uint32_t unclaimed = 0;
  return __atomic_compare_exchange_n(&word, &unclaimed, value, false, __ATOMIC_RELAXED,
                                     __ATOMIC_RELAXED);
#endif
}

MOETAP_DEVICE inline void fault(DeviceStep& step, DeviceFault kind, int layer, std::int64_t token,
                                std::int64_t value) {
  if (!claim(step.fault, static_cast<std::uint32_t>(kind))) return;
  step.fault_layer = layer;
  step.fault_token = token;
  step.fault_value = value;
}

MOETAP_DEVICE inline std::int64_t at_most(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

// Whether an id is outside [0, num_experts), without a branch so that loops over it vectorise.
template <class T>
MOETAP_DEVICE inline std::uint32_t outside(T id, std::uint32_t num_experts) {
  if constexpr (sizeof(T) == 8) {
    // Two halves: SSE2 and NEON compare 32-bit lanes, not 64-bit ones.
    const auto bits = static_cast<std::uint64_t>(id);
    return static_cast<std::uint32_t>(bits >> 32) |
           static_cast<std::uint32_t>(static_cast<std::uint32_t>(bits) >= num_experts);
  } else {
    return static_cast<std::uint32_t>(static_cast<std::uint32_t>(id) >= num_experts);
  }
}

// Narrows n ids to 16 bits; false if any was outside [0, num_experts).
template <class T>
MOETAP_DEVICE inline bool narrow_checked(const T* __restrict__ from, std::uint16_t* __restrict__ to,
                                         std::int64_t n, std::uint32_t num_experts) {
  std::uint32_t bad = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    to[i] = static_cast<std::uint16_t>(from[i]);
    bad |= outside(from[i], num_experts);
  }
  return bad == 0;
}

// On a host, fetches n ids that the next block will read: the layers lie too far apart for the
// processor to see the pattern. Past the end of the cache it does no harm.
MOETAP_DEVICE inline void prefetch([[maybe_unused]] const std::uint16_t* ids,
                                   [[maybe_unused]] std::int64_t n) {
#if !defined(__CUDA_ARCH__)
  constexpr std::int64_t kLine = 64 / sizeof(std::uint16_t);
  for (std::int64_t i = 0; i < n; i += kLine) __builtin_prefetch(ids + i, 0, 2);
#endif
}

// Narrows eight ids: one vector load, pack and store.
template <class Id>
MOETAP_DEVICE inline void narrow8(const std::uint16_t* __restrict__ from, Id* __restrict__ to) {
  for (int i = 0; i < 8; ++i) to[i] = static_cast<Id>(from[i]);
}

// Narrows the rows of one layer, `row_ids` apart in `to`. kTopK is top_k where the compiler may
// know it, or 0.
template <int kTopK, class Id>
MOETAP_DEVICE inline void narrow_rows(const std::uint16_t* __restrict__ from, Id* __restrict__ to,
                                      std::int64_t n, int top_k, std::int64_t row_ids) {
  if constexpr (kTopK > 0) top_k = kTopK;
  for (std::int64_t row = 0; row < n; ++row, from += top_k, to += row_ids) {
    if (top_k < 8) {
      for (int i = 0; i < top_k; ++i) to[i] = static_cast<Id>(from[i]);
      continue;
    }
    // Eights, the last one overlapping the one before it where top_k is no multiple of 8.
    for (int i = 0; i + 8 < top_k; i += 8) narrow8(from + i, to + i);
    narrow8(from + top_k - 8, to + top_k - 8);
  }
}

}  // namespace kernels

// Opens a step. The values travel in the kernel's arguments: no host memory that the next step
// could overwrite before this one's copy ran.
struct BeginStepKernel {
  DeviceStep* step;
  DeviceStep value;

  MOETAP_DEVICE void operator()(Block block) const {
    if (block.index == 0 && block.lane == 0) *step = value;
  }
};

// Copies one layer's picks of this rank's rows into the cache, rows [0, num_tokens) of the open
// step and no other (H2, H13). A block takes kTokens of them.
template <class T>
struct CaptureKernel {
  static constexpr std::int64_t kTokens = 64;

  const T* topk_ids;
  std::int64_t rows;
  std::int64_t row_stride;
  std::int64_t first_row;  // below 0: the open step's dp_row
  DeviceStep* step;
  std::uint64_t* captured;      // this layer's: the step of its last capture
  std::uint64_t* missing_step;  // [token]: the last step in which its row had a missing route
  std::uint16_t* routes;        // this layer's [token][top_k]
  std::int32_t layer;
  std::int32_t top_k;
  std::uint32_t num_experts;

  MOETAP_DEVICE void operator()(Block block) const {
    const std::int64_t num_tokens = step->num_tokens;
    const std::int64_t first = first_row >= 0 ? first_row : step->dp_row;
    const bool enough = first + num_tokens <= rows || MOETAP_OFF("H13 enough rows");
    if (block.index == 0 && block.lane == 0) {
      if (*captured == step->step && !MOETAP_OFF("H1 captured once")) {
        kernels::fault(*step, DeviceFault::layer_twice, layer, 0, 0);
      }
      *captured = step->step;
      if (!enough) kernels::fault(*step, DeviceFault::rows, layer, first + num_tokens, rows);
    }
    if (!enough) return;

    const std::int64_t used = MOETAP_OFF("H2 rows of tokens only") && first + num_tokens < rows
                                  ? num_tokens + 1
                                  : num_tokens;
    // One contiguous run of rows a lane: a single row each on a GPU, the whole block on a host.
    const std::int64_t run = (kTokens + block.lanes - 1) / block.lanes;
    const std::int64_t begin = block.index * kTokens + block.lane * run;
    const std::int64_t end =
        kernels::at_most(kernels::at_most(begin + run, (block.index + 1) * kTokens), used);
    if (begin < end) capture_rows(topk_ids + (first + begin) * row_stride, begin, end);
  }

 private:
  MOETAP_DEVICE void capture_rows(const T* from, std::int64_t begin, std::int64_t end) const {
    std::uint16_t* to = routes + begin * top_k;
    bool good = true;
    if (row_stride == top_k) {
      good = kernels::narrow_checked(from, to, (end - begin) * top_k, num_experts);
    } else if (top_k == 8) {
      for (std::int64_t row = 0; row < end - begin; ++row) {
        good &= kernels::narrow_checked(from + row * row_stride, to + row * 8, 8, num_experts);
      }
    } else {
      for (std::int64_t row = 0; row < end - begin; ++row) {
        good &=
            kernels::narrow_checked(from + row * row_stride, to + row * top_k, top_k, num_experts);
      }
    }
    if (!good) explain(from, begin, end);
  }

  // The rare second look at rows that hold something outside [0, num_experts).
  MOETAP_DEVICE void explain(const T* from, std::int64_t begin, std::int64_t end) const {
    for (std::int64_t token = begin; token < end; ++token, from += row_stride) {
      for (int k = 0; k < top_k; ++k) {
        if (!kernels::outside(from[k], num_experts)) continue;
        if (std::is_signed_v<T> && from[k] == static_cast<T>(-1)) {
          if (!MOETAP_OFF("H2 missing routes")) missing_step[token] = step->step;
        } else if (!MOETAP_OFF("H20 ids of experts")) {
          kernels::fault(*step, DeviceFault::expert_id, layer, token,
                         static_cast<std::int64_t>(from[k]));
        }
      }
    }
  }
};

// Transposes the cache to [row][layer][top_k], narrowed, and clones the slot mapping, for each
// token or for those that are wanted. A block takes kTokens: few enough that what it reads and what
// it writes both stay in a core's cache.
template <class Id>
struct SnapshotKernel {
  static constexpr std::int64_t kTokens = 16;

  DeviceStep* step;
  const std::uint64_t* missing_step;
  const std::uint16_t* routes;
  const Slot* slot_mapping;
  const std::uint32_t* tokens;  // [row]: its token, ascending; null: row i is token i's
  Slot* slots;                  // of the record, and its rows
  Id* rows;
  std::int64_t num_rows;
  std::int64_t max_tokens;
  std::int64_t num_slots;
  std::int32_t num_layers;
  std::int32_t top_k;

  MOETAP_DEVICE void operator()(Block block) const {
    const std::int64_t begin = block.index * kTokens;
    const std::int64_t end = kernels::at_most(begin + kTokens, num_rows);
    for (std::int64_t row = begin + block.lane; row < end; row += block.lanes) {
      slots[row] = checked_slot(token_of(row));
    }
    if (tokens == nullptr || block.lanes > 1) return transpose_any(block, begin, end);
    for (std::int64_t first = begin, last = begin; first < end; first = last) {
      while (++last < end && tokens[last] == tokens[last - 1] + 1) {
      }
      transpose_any(block, first, last);
    }
  }

 private:
  MOETAP_DEVICE std::int64_t token_of(std::int64_t row) const {
    return tokens == nullptr ? row : static_cast<std::int64_t>(tokens[row]);
  }

  MOETAP_DEVICE Slot checked_slot(std::int64_t token) const {
    const Slot slot = slot_mapping[token];
    if (slot < 0 || slot >= num_slots) {
      kernels::fault(*step, DeviceFault::slot, 0, token, slot);
      return kBadSlot;
    }
    return missing_step[token] == step->step ? ~slot : slot;
  }

  MOETAP_DEVICE void transpose_any(Block block, std::int64_t begin, std::int64_t end) const {
    if (top_k == 8) {
      transpose<8>(block, begin, end);
    } else {
      transpose<0>(block, begin, end);
    }
  }

  // Layers outside, tokens inside: layers lie a power of two apart for most max_tokens, so walking
  // along them would miss the cache at each step. A lone lane takes all rows, of successive tokens,
  // in one run.
  template <int kTopK>
  MOETAP_DEVICE void transpose(Block block, std::int64_t begin, std::int64_t end) const {
    const std::int64_t row_ids = static_cast<std::int64_t>(num_layers) * top_k;
    const std::int64_t run = block.lanes == 1 ? kTokens : 1;
    const std::int64_t runs = kTokens / run;
    for (std::int64_t i = block.lane; i < num_layers * runs; i += block.lanes) {
      const std::int64_t layer = i / runs;
      const std::int64_t row = begin + i % runs * run;
      if (row >= end) continue;
      const std::int64_t token = token_of(row);
      kernels::prefetch(routes + (layer * max_tokens + token + kTokens) * top_k, run * top_k);
      kernels::narrow_rows<kTopK>(routes + (layer * max_tokens + token) * top_k,
                                  rows + row * row_ids + layer * top_k,
                                  kernels::at_most(run, end - row), top_k, row_ids);
    }
  }
};

// Writes the head of the record: what the kernels before it found. A kernel of its own, since the
// blocks of one kernel have no order.
struct ReportKernel {
  const DeviceStep* step;
  const std::uint64_t* captured;  // [layer]
  StepReport* report;
  std::uint64_t* record_captured;
  std::int64_t wanted;  // tokens whose rows the record holds; below 0: the step's
  std::int32_t num_layers;

  MOETAP_DEVICE void operator()(Block block) const {
    for (int layer = block.lane; layer < num_layers; layer += block.lanes) {
      record_captured[layer] = captured[layer];
    }
    if (block.lane != 0) return;
    report->step = step->step;
    report->num_tokens = wanted < 0 ? step->num_tokens : wanted;
    report->step_tokens = step->num_tokens;
    report->fault = step->fault;
    report->fault_layer = step->fault_layer;
    report->fault_token = step->fault_token;
    report->fault_value = step->fault_value;
  }
};

}  // namespace moetap
