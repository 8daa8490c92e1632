// bfloat16, computed plainly.
#pragma once

#include <cstdint>

namespace moetap::test {

// The nearest bfloat16, the even one of two; of a NaN the upper half, as long as that is one.
inline std::uint16_t nearest_bfloat16(std::uint32_t float32) {
  const auto upper = static_cast<std::uint16_t>(float32 / 65'536);
  const std::uint32_t lower = float32 % 65'536;
  const bool exponent_is_full = upper / 128 % 256 == 255;
  if (exponent_is_full && (upper % 128 != 0 || lower != 0)) {
    return upper % 128 != 0 ? upper : static_cast<std::uint16_t>(upper + 64);
  }
  const bool up = lower > 32'768 || (lower == 32'768 && upper % 2 == 1);
  return static_cast<std::uint16_t>(upper + (up ? 1 : 0));
}

}  // namespace moetap::test
