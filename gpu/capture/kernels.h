// The kernels of a step up to its snapshot: begin, and capture for each layer. Both compilers take
// them. See <moetap/kernel.h> for the rules, and device_cache.cc for the memory they work on.
#pragma once

#include <moetap/kernel.h>
#include <moetap/route_sink.h>
#include <moetap/topk_ids.h>

#include <cstdint>
#include <type_traits>

#include "lib/internal/injection.h"

namespace moetap {

namespace kernels {

MOETAP_DEVICE inline std::int64_t at_most(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

#if defined(__CUDA_ARCH__)
// Eight adjacent ids, for accesses of 16 bytes.
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

// Narrows n ids to 16 bits. Returns false if any was outside [0, num_experts).
template <class T>
MOETAP_DEVICE inline bool narrow_checked(const T* __restrict__ from, std::uint16_t* __restrict__ to,
                                         std::int64_t n, std::uint32_t num_experts) {
#if defined(__CUDA_ARCH__)
  std::uint32_t bad = 0;
  std::int64_t i = 0;
  if (aligned(from) && aligned(to)) {
    for (; i + 8 <= n; i += 8) {
      const Eight<T> in = narrow_eight(from + i, to + i);
#pragma unroll
      for (int j = 0; j < 8; ++j) bad |= outside(in.ids[j], num_experts);
    }
  }
  for (; i < n; ++i) {
    to[i] = static_cast<std::uint16_t>(from[i]);
    bad |= outside(from[i], num_experts);
  }
  return bad == 0;
#else
  std::make_unsigned_t<T> bits = 0;
  // If num_experts is a power of two (nearly always), an id is outside if it has any higher bit
  // set.
  if ((num_experts & (num_experts - 1)) == 0) {
    for (std::int64_t i = 0; i < n; ++i) {
      to[i] = static_cast<std::uint16_t>(from[i]);
      bits |= static_cast<std::make_unsigned_t<T>>(from[i]);
    }
    return bits < num_experts;
  }
  // Otherwise it is compared after narrowing, which takes half as many instructions.
  const auto most = static_cast<std::uint16_t>(num_experts - 1);
  std::uint16_t above = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto id = static_cast<std::uint16_t>(from[i]);
    to[i] = id;
    bits |= static_cast<std::make_unsigned_t<T>>(from[i]);
    above |= static_cast<std::uint16_t>(id > most);
  }
  return above == 0 && static_cast<std::uint64_t>(bits) <= 0xFFFF;
#endif
}

}  // namespace kernels

// Opens a step. The values are kernel arguments: host memory could be overwritten by the next step
// before this step's copy ran.
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
    capture(block, RouteWriter(sink), WeightType::none);
  }

  // The tokens [begin, end) that a lane captures. Row `begin` of the cache comes from `from`.
  struct Run {
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };
  // `weights`: the type of the weights that the caller captures beside the ids, in the same run.
  MOETAP_DEVICE Run capture(Block block, const RouteWriter& writer, WeightType weights) const {
    if (block.index == 0 && block.lane == 0) writer.begin(rows, weights);
    if (!writer.covers(rows)) return {};

    const std::int64_t used =
        MOETAP_OFF("H2 rows of tokens only") && writer.first_row() + writer.num_tokens() < rows
            ? writer.num_tokens() + 1
            : writer.num_tokens();
    // One contiguous run of rows per lane: a single row on a GPU, the whole block on a host.
    const std::int64_t run = (kTokens + block.lanes - 1) / block.lanes;
    const std::int64_t begin = block.index * kTokens + block.lane * run;
    const std::int64_t end =
        kernels::at_most(kernels::at_most(begin + run, (block.index + 1) * kTokens), used);
    if (begin >= end) return {};
    const T* const from = topk_ids + (writer.first_row() + begin) * row_stride;
    if (!capture_rows(from, begin, end)) explain(writer, from, begin, end);
    return {begin, end};
  }

 private:
  // Returns false for an id outside [0, num_experts), or an expert twice among a token's picks.
  MOETAP_DEVICE bool capture_rows(const T* from, std::int64_t begin, std::int64_t end) const {
    const int top_k = sink.top_k;
    std::uint16_t* to = sink.routes + begin * top_k;
    bool good = true;
    if (row_stride == top_k) {
      good = kernels::narrow_checked(from, to, (end - begin) * top_k, sink.num_experts);
    } else if (top_k == 8) {
      for (std::int64_t row = 0; row < end - begin; ++row) {
        good &= kernels::narrow_checked(from + row * row_stride, to + row * 8, 8, sink.num_experts);
      }
    } else {
      for (std::int64_t row = 0; row < end - begin; ++row) {
        good &= kernels::narrow_checked(from + row * row_stride, to + row * top_k, top_k,
                                        sink.num_experts);
      }
    }
    return good & !may_repeat(from, to, end - begin);
  }

  // Whether any row has an expert twice, or an invalid id. Run after narrowing, while the rows are
  // in the processor's cache.
  MOETAP_DEVICE bool may_repeat(const T* from, const std::uint16_t* to, std::int64_t rows) const {
    const int n = kernels::compared(sink.distinct, sink.top_k);
    if (n < 2) return false;
    bool any = false;
    if (n == 2) {
      for (std::int64_t row = 0; row < rows; ++row, to += sink.top_k) any |= to[0] == to[1];
    } else if (n == 8) {
      for (std::int64_t row = 0; row < rows; ++row, from += row_stride) {
        any |= repeats_an_expert(from, 8, sink.num_experts);
      }
    } else {
      for (std::int64_t row = 0; row < rows; ++row, from += row_stride) {
        any |= repeats_an_expert(from, n, sink.num_experts);
      }
    }
    return any;
  }

  // The rare second pass over rows that have an id outside [0, num_experts), or an expert twice.
  MOETAP_DEVICE void explain(const RouteWriter& writer, const T* from, std::int64_t begin,
                             std::int64_t end) const {
    for (std::int64_t token = begin; token < end; ++token, from += row_stride) {
      for (int k = 0; k < sink.top_k; ++k) {
        if (kernels::outside(from[k], sink.num_experts)) writer.refuse(token, from[k]);
      }
      kernels::refuse_repeats(*sink.step, sink.layer, token, from,
                              kernels::compared(sink.distinct, sink.top_k), sink.num_experts);
    }
  }
};

// Layers whose picks other kernels than ours may write into the cache. Their ids are cleared when a
// step opens and checked when it is published. So a pick that was not written is a missing route,
// and never an older step's pick. A block of either kernel takes kTokens tokens of one layer.
struct ClearedLayers {
  static constexpr std::int64_t kTokens = 256;
  static constexpr std::uint16_t kUnwritten = 0xFFFF;

  enum Writer : std::uint8_t {
    none,    // the capture kernel only
    sink,    // an engine's kernel with a RouteSink, which stamps the layer
    output,  // a third-party kernel with a RouteOutput, which stamps nothing: if it wrote no row,
             // the layer was not captured (H3)
  };

  DeviceStep* step;
  const std::uint8_t* writer;   // [layer]
  std::uint64_t* captured;      // [layer]
  std::uint64_t* missing_step;  // [token]
  std::uint16_t* routes;        // [layer][max_tokens][top_k]
  std::int64_t max_tokens;
  std::int64_t blocks_per_layer;
  std::int32_t top_k;
  std::uint32_t num_experts;
  Distinct distinct;
};

struct ClearLayersKernel {
  ClearedLayers layers;

  MOETAP_DEVICE void operator()(Block block) const {
    const std::int64_t layer = block.index / layers.blocks_per_layer;
    if (layers.writer[layer] == ClearedLayers::none) return;
    const std::int64_t first = block.index % layers.blocks_per_layer * layers.kTokens;
    const std::int64_t end =
        kernels::at_most(first + layers.kTokens, layers.step->num_tokens) * layers.top_k;
    std::uint16_t* const ids = layers.routes + layer * layers.max_tokens * layers.top_k;
    for (std::int64_t i = first * layers.top_k + block.lane; i < end; i += block.lanes) {
      ids[i] = layers.kUnwritten;
    }
  }
};

struct CheckLayersKernel {
  ClearedLayers layers;

  MOETAP_DEVICE void operator()(Block block) const {
    const auto layer = static_cast<int>(block.index / layers.blocks_per_layer);
    if (layers.writer[layer] == ClearedLayers::none) return;
    const std::int64_t first = block.index % layers.blocks_per_layer * layers.kTokens;
    const std::int64_t end = kernels::at_most(first + layers.kTokens, layers.step->num_tokens);
    bool written = false;
    for (std::int64_t token = first + block.lane; token < end; token += block.lanes) {
      written |= check(layer, token);
    }
    // In any order of lanes: all write the same value.
    if (written && layers.writer[layer] == ClearedLayers::output) {
      layers.captured[layer] = layers.step->step;
    }
  }

 private:
  // Whether any id of the row was written.
  MOETAP_DEVICE bool check(int layer, std::int64_t token) const {
    const std::uint16_t* const ids =
        layers.routes + (layer * layers.max_tokens + token) * layers.top_k;
    const int n = kernels::compared(layers.distinct, layers.top_k);
    kernels::refuse_repeats(*layers.step, layer, token, ids, n, layers.num_experts);
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

}  // namespace moetap
