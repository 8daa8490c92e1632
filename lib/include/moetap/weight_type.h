// The forms in which a row can have the router's weights. C++17, so that an engine's CUDA code can
// include it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace moetap {

// The element type of the weights beside a row's ids. bfloat16 is the upper half of a float32.
enum class WeightType : std::uint8_t { none, float32, bfloat16 };

constexpr std::size_t weight_bytes(WeightType type) {
  switch (type) {
    case WeightType::none:
      return 0;
    case WeightType::float32:
      return 4;
    case WeightType::bfloat16:
      return 2;
  }
  return 0;
}

constexpr std::string_view weight_type_name(WeightType type) {
  switch (type) {
    case WeightType::none:
      return "none";
    case WeightType::float32:
      return "float32";
    case WeightType::bfloat16:
      return "bfloat16";
  }
  return "unknown";
}

// The upper half of a float32.
struct BFloat16 {
  std::uint16_t bits = 0;

  explicit operator float() const {
    const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
  }
};

}  // namespace moetap
