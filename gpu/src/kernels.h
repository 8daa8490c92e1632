// The kernels of a step: begin, capture (one a layer), snapshot, report. Both compilers take them;
// see <moetap/kernel.h> for the rules, and device_cache.cc for the memory they work on.
#pragma once

#include <moetap/kernel.h>
#include <moetap/route_sink.h>
#include <moetap/step_record.h>

#include <cstdint>
#include <limits>
#include <type_traits>

#include "../../lib/src/injection.h"

namespace moetap {

// Stands in a record for a slot that does not exist, so that no reader takes it for a real one or
// for the complement of one.
inline constexpr Slot kBadSlot = std::numeric_limits<Slot>::max();

namespace kernels {

MOETAP_DEVICE inline std::int64_t at_most(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

#if defined(__CUDA_ARCH__)
// Eight ids that lie together, for accesses of 16 bytes.
template <class T>
struct alignas(8 * sizeof(T) < 16 ? 8 * sizeof(T) : 16) Eight {
  T ids[8];
};
template <class T>
__device__ inline bool aligned(const T* ids) {
  return reinterpret_cast<std::uintptr_t>(ids) % alignof(Eight<T>) == 0;
}
template <class From, class To>
__device__ inline Eight<From> narrow_eight(const From* from, To* to) {
  const Eight<From> in = *reinterpret_cast<const Eight<From>*>(from);
  Eight<To> out;
#pragma unroll
  for (int i = 0; i < 8; ++i) out.ids[i] = static_cast<To>(in.ids[i]);
  *reinterpret_cast<Eight<To>*>(to) = out;
  return in;
}
#endif

// Narrows n ids to 16 bits; false if any was outside [0, num_experts).
template <class T>
MOETAP_DEVICE inline bool narrow_checked(const T* __restrict__ from, std::uint16_t* __restrict__ to,
                                         std::int64_t n, std::uint32_t num_experts) {
  std::uint32_t bad = 0;
  std::int64_t i = 0;
#if defined(__CUDA_ARCH__)
  if (aligned(from) && aligned(to)) {
    for (; i + 8 <= n; i += 8) {
      const Eight<T> in = narrow_eight(from + i, to + i);
#pragma unroll
      for (int j = 0; j < 8; ++j) bad |= outside(in.ids[j], num_experts);
    }
  }
#endif
  for (; i < n; ++i) {
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
#if defined(__CUDA_ARCH__)
  if (aligned(from) && aligned(to)) {
    narrow_eight(from, to);
    return;
  }
#endif
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
  static constexpr int kLanes = 64;

  const T* topk_ids;
  std::int64_t rows;
  std::int64_t row_stride;
  RouteSink sink;

  MOETAP_DEVICE void operator()(Block block) const {
    const RouteWriter writer(sink);
    if (block.index == 0 && block.lane == 0) writer.begin(rows);
    if (!writer.covers(rows)) return;

    const std::int64_t used =
        MOETAP_OFF("H2 rows of tokens only") && writer.first_row() + writer.num_tokens() < rows
            ? writer.num_tokens() + 1
            : writer.num_tokens();
    // One contiguous run of rows a lane: a single row each on a GPU, the whole block on a host.
    const std::int64_t run = (kTokens + block.lanes - 1) / block.lanes;
    const std::int64_t begin = block.index * kTokens + block.lane * run;
    const std::int64_t end =
        kernels::at_most(kernels::at_most(begin + run, (block.index + 1) * kTokens), used);
    if (begin >= end) return;
    const T* const from = topk_ids + (writer.first_row() + begin) * row_stride;
    if (!capture_rows(from, begin, end)) explain(writer, from, begin, end);
  }

 private:
  // False if there was anything outside [0, num_experts).
  MOETAP_DEVICE bool capture_rows(const T* from, std::int64_t begin, std::int64_t end) const {
    const int top_k = sink.top_k;
    std::uint16_t* to = sink.routes + begin * top_k;
    if (row_stride == top_k) {
      return kernels::narrow_checked(from, to, (end - begin) * top_k, sink.num_experts);
    }
    bool good = true;
    if (top_k == 8) {
      for (std::int64_t row = 0; row < end - begin; ++row) {
        good &= kernels::narrow_checked(from + row * row_stride, to + row * 8, 8, sink.num_experts);
      }
    } else {
      for (std::int64_t row = 0; row < end - begin; ++row) {
        good &= kernels::narrow_checked(from + row * row_stride, to + row * top_k, top_k,
                                        sink.num_experts);
      }
    }
    return good;
  }

  // The rare second look at rows that hold something outside [0, num_experts).
  MOETAP_DEVICE void explain(const RouteWriter& writer, const T* from, std::int64_t begin,
                             std::int64_t end) const {
    for (std::int64_t token = begin; token < end; ++token, from += row_stride) {
      for (int k = 0; k < sink.top_k; ++k) {
        if (kernels::outside(from[k], sink.num_experts)) writer.refuse(token, from[k]);
      }
    }
  }
};

// Layers whose picks a kernel of someone else's writes into the cache (DeviceCache::route_output).
// That kernel stamps nothing, so its rows are made -1 when a step opens and looked at when it is
// published: what it did not write is a missing route, and a layer of which it wrote nothing was
// not captured (H3). A block of either kernel takes kTokens tokens of one layer.
struct ForeignLayers {
  static constexpr std::int64_t kTokens = 256;
  static constexpr std::uint16_t kUnwritten = 0xFFFF;

  DeviceStep* step;
  const std::uint8_t* foreign;  // [layer]
  std::uint64_t* captured;      // [layer]
  std::uint64_t* missing_step;  // [token]
  std::uint16_t* routes;        // [layer][max_tokens][top_k]
  std::int64_t max_tokens;
  std::int64_t blocks_per_layer;
  std::int32_t top_k;
  std::uint32_t num_experts;
};

struct ClearForeignKernel {
  ForeignLayers layers;

  MOETAP_DEVICE void operator()(Block block) const {
    const std::int64_t layer = block.index / layers.blocks_per_layer;
    if (layers.foreign[layer] == 0) return;
    const std::int64_t first = block.index % layers.blocks_per_layer * layers.kTokens;
    const std::int64_t end =
        kernels::at_most(first + layers.kTokens, layers.step->num_tokens) * layers.top_k;
    std::uint16_t* const ids = layers.routes + layer * layers.max_tokens * layers.top_k;
    for (std::int64_t i = first * layers.top_k + block.lane; i < end; i += block.lanes) {
      ids[i] = layers.kUnwritten;
    }
  }
};

struct AdoptForeignKernel {
  ForeignLayers layers;

  MOETAP_DEVICE void operator()(Block block) const {
    const auto layer = static_cast<int>(block.index / layers.blocks_per_layer);
    if (layers.foreign[layer] == 0) return;
    const std::int64_t first = block.index % layers.blocks_per_layer * layers.kTokens;
    const std::int64_t end = kernels::at_most(first + layers.kTokens, layers.step->num_tokens);
    bool written = false;
    for (std::int64_t token = first + block.lane; token < end; token += block.lanes) {
      written |= adopt(layer, token);
    }
    // Whichever lane comes first or last: all write the same.
    if (written) layers.captured[layer] = layers.step->step;
  }

 private:
  // Whether any of the row was written.
  MOETAP_DEVICE bool adopt(int layer, std::int64_t token) const {
    const std::uint16_t* const ids =
        layers.routes + (layer * layers.max_tokens + token) * layers.top_k;
    bool written = false;
    for (int k = 0; k < layers.top_k; ++k) {
      written |= ids[k] != layers.kUnwritten;
      if (ids[k] < layers.num_experts) continue;
      if (ids[k] == layers.kUnwritten) {
        layers.missing_step[token] = layers.step->step;
      } else {
        kernels::fault(*layers.step, DeviceFault::expert_id, layer, token,
                       static_cast<std::int16_t>(ids[k]));
      }
    }
    return written;
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
