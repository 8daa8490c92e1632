// Fused capture: an engine's router kernel writes its picks into the device cache while it computes
// them. This takes no extra launch and no extra read. For CUDA code (C++17) and host code.
//
//   __global__ void my_router(..., moetap::RouteSink sink) {         // by value: fixed addresses
//     const moetap::RouteWriter routes(sink);                        // each thread
//     if (blockIdx.x == 0 && threadIdx.x == 0) routes.begin(rows);   // one thread of each launch
//     ...
//     routes.put(row, k, expert_id);                 // the thread that has the pick
//   }
//
// A launch must put() every pick k < top_k of every row, including -1. A pick without a put() is a
// missing route, and its row is missing. If rows have weights too (ModelShape::with_weights), say
// so in begin(), and put each pick with its weight:
//
//     routes.begin(rows, moetap::WeightType::float32);
//     routes.put(row, k, expert_id, weight);
//
// A sink comes from Capturer::route_sink, for one layer, and replaces that layer's capture() call.
// It may be captured into a graph: values that change per step are read from device memory.
#pragma once

#include <moetap/device_fault.h>
#include <moetap/kernel.h>
#include <moetap/picks.h>
#include <moetap/weight_type.h>

#include <cstdint>
#include <cstring>

// Guards that moetap's own tests switch off, in a separate build.
#if defined(MOETAP_INJECTION)
#include "lib/internal/injection.h"
#define MOETAP_GUARD_OFF(guard) MOETAP_OFF(guard)
#else
#define MOETAP_GUARD_OFF(guard) false
#endif

namespace moetap {

// The open step, in device memory at a fixed address, as graphs need.
struct DeviceStep {
  std::uint64_t step = 0;
  std::int64_t num_tokens = 0;
  std::int64_t dp_row = 0;
  // The first fault. One thread sets `fault` by compare-and-swap. Only that thread writes the other
  // fields, and only a later kernel reads them.
  std::uint32_t fault = 0;
  std::int32_t fault_layer = 0;
  std::int64_t fault_token = 0;
  std::int64_t fault_value = 0;
  std::uint32_t finished = 0;  // finished blocks of the running kernel; 0 between kernels
};

// Which of a token's picks at a layer are compared with each other. A top-k router picks distinct
// experts. So an id that comes twice was not written by a router; unwritten memory is an example.
enum class Distinct : std::uint8_t {
  none,       // the shape declares repeats: ModelShape::repeats_experts
  first_two,  // all on a GPU; the first two on a host, which are equal in unwritten memory
  all,
};

// One layer of the device cache.
struct RouteSink {
  DeviceStep* step;
  std::uint64_t* captured;      // step of this layer's last capture
  std::uint64_t* missing_step;  // [token]: last step in which its row had a missing route
  std::uint16_t* routes;        // this layer's [token][top_k]
  std::int64_t first_row;  // this rank's first row of topk_ids; negative: the open step's dp_row
  std::int64_t end_row;    // end of this rank's rows, if the kernel has more
  std::int32_t layer;      // index into a row
  std::int32_t top_k;
  std::uint32_t num_experts;
  std::int32_t shared_columns = 0;  // declared picks after the first top_k, which are not routes
  WeightType weight_type = WeightType::none;  // none: weights are not captured
  Distinct distinct = Distinct::all;
  void* weights = nullptr;  // this layer's [token][top_k] of weight_type
};

namespace kernels {

// Sets the word if it is 0. Returns true for exactly one caller until the word is 0 again.
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

// How many of a token's first picks are compared with each other.
MOETAP_DEVICE inline int compared(Distinct distinct, int top_k) {
  if (distinct == Distinct::none) return 0;
#if !defined(__CUDA_ARCH__)
  if (distinct == Distinct::first_two && top_k > 2) return 2;
#endif
  return top_k;
}

// Records a fault if an expert comes twice among a token's first n picks.
template <class T>
MOETAP_DEVICE inline void refuse_repeats(DeviceStep& step, int layer, std::int64_t token,
                                         const T* ids, int n, std::uint32_t num_experts) {
  const int k = repeated_pick(ids, n, num_experts);
  if (k < 0 || MOETAP_GUARD_OFF("H32 distinct picks")) return;
  fault(step, DeviceFault::repeated_id, layer, token, static_cast<std::int64_t>(ids[k]));
}

// Rounds a float32 to the nearest bfloat16, ties to even. NaN stays NaN, with the upper bits of its
// payload. A value that bfloat16 represents exactly keeps its bits.
MOETAP_DEVICE inline std::uint16_t to_bfloat16(std::uint32_t float32) {
  const std::uint32_t upper = float32 >> 16;
  if ((float32 & 0x7FFF'FFFFU) > 0x7F80'0000U) {
    const bool lost = (upper & 0x7FU) == 0;
    return static_cast<std::uint16_t>(lost ? upper | 0x40U : upper);
  }
  return static_cast<std::uint16_t>((float32 + 0x7FFFU + (upper & 1U)) >> 16);
}

// Whether weights of type `given` can be stored as type `wanted`.
MOETAP_DEVICE inline bool becomes(WeightType given, WeightType wanted) {
  return given == wanted || (given == WeightType::float32 && wanted == WeightType::bfloat16);
}

}  // namespace kernels

// One thread's access to a sink during one launch. Rows are those of the kernel's topk_ids. The
// writer reads from the step which rows are this rank's real tokens, and drops the others.
class RouteWriter {
 public:
  MOETAP_DEVICE explicit RouteWriter(const RouteSink& sink)
      : sink_(sink),
        num_tokens_(sink.step->num_tokens),
        first_(sink.first_row >= 0 ? sink.first_row : sink.step->dp_row) {}

  // The type of the weights in rows. none: use begin() and put() without weights.
  MOETAP_DEVICE WeightType weight_type() const { return sink_.weight_type; }

  // Declares that this launch captures the layer, with this many rows and this type of weights.
  // Exactly one thread of each launch must call it. It is a fault to capture a layer twice in a
  // step or to have too few rows. Weights of another type than the rows' are a fault too, including
  // none where rows have some. float32 is allowed where rows have bfloat16 (rounded to nearest
  // even).
  MOETAP_DEVICE void begin(std::int64_t rows, WeightType weights = WeightType::none) const {
    DeviceStep& step = *sink_.step;
    if (*sink_.captured == step.step && !MOETAP_GUARD_OFF("H1 captured once")) {
      kernels::fault(step, DeviceFault::layer_twice, sink_.layer, 0, 0);
    }
    *sink_.captured = step.step;
    if (!kernels::becomes(weights, sink_.weight_type)) {
      kernels::fault(step, DeviceFault::weights, sink_.layer, 0, static_cast<int>(weights));
    }
    if (!covers(rows)) {
      kernels::fault(step, DeviceFault::rows, sink_.layer, first_ + num_tokens_,
                     rows < sink_.end_row ? rows : sink_.end_row);
    }
  }

  // Stores pick k of a row: a logical, global expert id, or -1 for a missing route. If rows have
  // weights, `weight` is the router's weight for that expert; any value is valid. Weights that
  // begin() refuses are a fault here too. Picks from top_k on are dropped if they are declared
  // (CapturerOptions::shared_expert_columns), and are a fault otherwise.
  template <class T>
  MOETAP_DEVICE void put(std::int64_t row, int k, T id) const {
    (void)store(row, k, id, WeightType::none);
  }
  template <class T>
  MOETAP_DEVICE void put(std::int64_t row, int k, T id, float weight) const {
    const std::int64_t at = store(row, k, id, WeightType::float32);
    if (at < 0) return;
    std::uint32_t bits;
    memcpy(&bits, &weight, sizeof bits);
    if (sink_.weight_type == WeightType::float32) {
      static_cast<std::uint32_t*>(sink_.weights)[at] = bits;
    } else {
      static_cast<std::uint16_t*>(sink_.weights)[at] = kernels::to_bfloat16(bits);
    }
  }
  template <class T>
  MOETAP_DEVICE void put(std::int64_t row, int k, T id, BFloat16 weight) const {
    const std::int64_t at = store(row, k, id, WeightType::bfloat16);
    if (at >= 0) static_cast<std::uint16_t*>(sink_.weights)[at] = weight.bits;
  }

  // The following functions are for the capture kernel.
  MOETAP_DEVICE bool covers(std::int64_t rows) const {
    return first_ + num_tokens_ <= (rows < sink_.end_row ? rows : sink_.end_row) ||
           MOETAP_GUARD_OFF("H13 enough rows");
  }
  MOETAP_DEVICE std::int64_t num_tokens() const { return num_tokens_; }
  MOETAP_DEVICE std::int64_t first_row() const { return first_; }

  // Records an id outside [0, num_experts): a missing route for -1, otherwise a fault.
  template <class T>
  MOETAP_DEVICE void refuse(std::int64_t token, T id) const {
    if (T(-1) < T(0) && id == T(-1)) {
      if (!MOETAP_GUARD_OFF("H2 missing routes")) sink_.missing_step[token] = sink_.step->step;
    } else if (!MOETAP_GUARD_OFF("H20 ids of experts")) {
      kernels::fault(*sink_.step, DeviceFault::expert_id, sink_.layer, token,
                     static_cast<std::int64_t>(id));
    }
  }

 private:
  // Stores a pick's id. Returns the pick's index in the layer's part of the cache, or a negative
  // number if it was not stored.
  template <class T>
  MOETAP_DEVICE std::int64_t store(std::int64_t row, int k, T id, WeightType weight) const {
    const std::int64_t token = row - first_;
    if (token < 0 || token >= num_tokens_ || !is_route(token, k)) return -1;
    if (!kernels::becomes(weight, sink_.weight_type)) {
      kernels::fault(*sink_.step, DeviceFault::weights, sink_.layer, token,
                     static_cast<int>(weight));
      return -1;
    }
    if (kernels::outside(id, sink_.num_experts)) {
      refuse(token, id);
      return -1;
    }
    const std::int64_t at = token * sink_.top_k + k;
    sink_.routes[at] = static_cast<std::uint16_t>(id);
    return at;
  }

  // Whether pick k is a route. A pick that is neither a route nor declared is a fault.
  MOETAP_DEVICE bool is_route(std::int64_t token, int k) const {
    if (static_cast<std::uint32_t>(k) < static_cast<std::uint32_t>(sink_.top_k)) return true;
    if (k < 0 || k - sink_.top_k >= sink_.shared_columns) {
      kernels::fault(*sink_.step, DeviceFault::pick, sink_.layer, token, k);
    }
    return false;
  }

  const RouteSink& sink_;
  std::int64_t num_tokens_;
  std::int64_t first_;
};

}  // namespace moetap
