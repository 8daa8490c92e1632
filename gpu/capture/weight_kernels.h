// The kernels of a step whose rows have weights beside the ids: the same launches with additional
// work.
#pragma once

#include <moetap/device_fault.h>
#include <moetap/step.h>

#include <cstddef>
#include <cstdint>

#include "gpu/capture/kernels.h"
#include "gpu/capture/snapshot_kernel.h"

namespace moetap {
namespace kernels {

template <class To, class From>
MOETAP_DEVICE inline To as_weight(From bits) {
  if constexpr (sizeof(To) < sizeof(From)) {
    return to_bfloat16(bits);
  } else {
    return bits;
  }
}

// Copies n weights, rounded if `To` is the narrower type. Returns whether one of them was not
// gathered.
template <class From, class To>
MOETAP_DEVICE inline bool copy_weights(const From* __restrict__ from, To* __restrict__ to,
                                       std::int64_t n) {
  constexpr auto kAbsent = static_cast<std::uint32_t>(kNotGathered);
  bool absent = false;
  std::int64_t i = 0;
#if defined(__CUDA_ARCH__)
  if (aligned(from) && aligned(to)) {
    for (; i + 8 <= n; i += 8) {
      const Eight<From> in = *reinterpret_cast<const Eight<From>*>(from + i);
      Eight<To> out;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        out.ids[j] = as_weight<To>(in.ids[j]);
        absent |= in.ids[j] == kAbsent;
      }
      *reinterpret_cast<Eight<To>*>(to + i) = out;
    }
  }
#endif
  for (; i < n; ++i) {
    to[i] = as_weight<To>(from[i]);
    absent |= from[i] == kAbsent;
  }
  return absent;
}

}  // namespace kernels

// A layer's weights beside its ids, as bits, since every value is allowed.
struct WeightSource {
  const void* data;
  std::int64_t row_stride;
  WeightType type;
  bool gathered;

  // Copies the weights of tokens [begin, end), whose rows begin at first_row + begin.
  MOETAP_DEVICE void capture(const RouteSink& sink, std::int64_t first_row, std::int64_t begin,
                             std::int64_t end) const {
    if (type == WeightType::bfloat16) {
      copy<std::uint16_t, std::uint16_t>(sink, first_row, begin, end);
    } else if (sink.weight_type == WeightType::bfloat16) {
      copy<std::uint32_t, std::uint16_t>(sink, first_row, begin, end);
    } else {
      copy<std::uint32_t, std::uint32_t>(sink, first_row, begin, end);
    }
  }

 private:
  template <class From, class To>
  MOETAP_DEVICE void copy(const RouteSink& sink, std::int64_t first_row, std::int64_t begin,
                          std::int64_t end) const {
    const int top_k = sink.top_k;
    const From* from = static_cast<const From*>(data) + (first_row + begin) * row_stride;
    To* to = static_cast<To*>(sink.weights) + begin * top_k;
    if (row_stride == top_k && !gathered) {
      kernels::copy_weights(from, to, (end - begin) * top_k);
      return;
    }
    for (std::int64_t token = begin; token < end; ++token, from += row_stride, to += top_k) {
      if (kernels::copy_weights(from, to, top_k) && gathered) {
        kernels::fault(*sink.step, DeviceFault::expert_id, sink.layer, token, kNotGathered);
      }
    }
  }
};

template <class T>
struct WeightedCaptureKernel {
  static constexpr std::int64_t kTokens = CaptureKernel<T>::kTokens;
  static constexpr int kLanes = CaptureKernel<T>::kLanes;

  CaptureKernel<T> ids;
  WeightSource weights;

  MOETAP_DEVICE void operator()(Block block) const {
    const RouteWriter writer(ids.sink);
    const auto run = ids.capture(block, writer, weights.type);
    if (run.begin < run.end) weights.capture(ids.sink, writer.first_row(), run.begin, run.end);
  }
};

template <class Id>
struct WeightedSnapshotKernel {
  static constexpr std::int64_t kTokens = SnapshotKernel<Id>::kTokens;

  SnapshotKernel<Id> ids;
  const void* weights;   // [layer][max_tokens][top_k]
  std::uint32_t offset;  // of the weights in a row, in bytes
  WeightType type;

  MOETAP_DEVICE void operator()(Block block) const {
    ids.take_slots(block);
    ids.take_rows(block, ids.routes, ids.rows, ids.row_stride);
    clear_gaps(block);
    if (type == WeightType::float32) {
      take_weights<std::uint32_t>(block);
    } else {
      take_weights<std::uint16_t>(block);
    }
    ids.finish(block);
  }

 private:
  // Bytes between ids and weights.
  MOETAP_DEVICE void clear_gaps(Block block) const {
    const std::int64_t first = std::int64_t{ids.num_layers} * ids.top_k;
    const auto end = static_cast<std::int64_t>(offset / sizeof(Id));
    for (std::int64_t row = block.index * kTokens + block.lane; row < ids.end_of(block);
         row += block.lanes) {
      for (std::int64_t i = first; i < end; ++i) ids.rows[row * ids.row_stride + i] = 0;
    }
  }

  template <class Bits>
  MOETAP_DEVICE void take_weights(Block block) const {
    auto* const to = reinterpret_cast<Bits*>(reinterpret_cast<std::byte*>(ids.rows) + offset);
    ids.take_rows(block, static_cast<const Bits*>(weights), to,
                  ids.row_stride * static_cast<std::int64_t>(sizeof(Id)) /
                      static_cast<std::int64_t>(sizeof(Bits)));
  }
};

}  // namespace moetap
