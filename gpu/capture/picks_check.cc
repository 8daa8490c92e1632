#include "gpu/capture/picks_check.h"

#include <moetap/types.h>

#include <fmt/format.h>

#include <cstddef>

namespace moetap::detail {
namespace {

std::string type_text(WeightType type) {
  const std::string name(weight_type_name(type));
  return type <= WeightType::bfloat16 ? name : fmt::format("{} ({})", name, static_cast<int>(type));
}

// Whether weights of type `given` can become rows' weights of type `wanted`; on the device:
// becomes().
bool can_become(WeightType given, WeightType wanted) {
  return given == wanted || (given == WeightType::float32 && wanted == WeightType::bfloat16);
}

// A GPU load from an unaligned address destroys the context.
std::optional<std::string> misaligned(const void* data, std::size_t element, const char* what) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  if (address % element == 0) return std::nullopt;
  return fmt::format("{} at {:#x}, elements of {} bytes: the address must be a multiple of that",
                     what, address, element);
}

std::optional<std::string> why_weights(const TopkWeights& weights, std::int64_t rows, int top_k,
                                       WeightType wanted) {
  if (!can_become(weights.type, wanted)) {
    return fmt::format(
        "topk_ids with weights of type {}, but rows are of type {}; give those that "
        "ModelShape::with_weights() promised, or a shape without them to both ends",
        type_text(weights.type), type_text(wanted));
  }
  if (wanted == WeightType::none) return std::nullopt;
  if (weights.row_stride < top_k) {
    return fmt::format("weights with a row stride of {} elements, below top_k {}",
                       weights.row_stride, top_k);
  }
  if (weights.data == nullptr && rows > 0) {
    return fmt::format("weights are null, but have {} rows", rows);
  }
  return misaligned(weights.data, weight_bytes(weights.type), "weights");
}

}  // namespace

std::optional<std::string> why_unreadable(const TopkIds& picks, std::int64_t rows, int top_k,
                                          WeightType wanted) {
  if (picks.columns < top_k || picks.row_stride < picks.columns) {
    return fmt::format(
        "topk_ids has {} columns and a row stride of {} elements: needed are at least top_k = {} "
        "columns, and a stride no smaller than its columns",
        picks.columns, picks.row_stride, top_k);
  }
  if (picks.data == nullptr && rows > 0) {
    return fmt::format("topk_ids is null, but has {} rows", rows);
  }
  if (auto why = misaligned(picks.data, id_bytes(picks.type), "topk_ids")) return why;
  return why_weights(picks.weights, rows, top_k, wanted);
}

}  // namespace moetap::detail
