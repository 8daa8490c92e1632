// The header of a .npy file, as NumPy writes it for arrays like ours.
#pragma once

#include <moetap/types.h>
#include <moetap/weight_type.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace moetap::detail {

struct NpyHeader {
  std::string_view type;              // NumPy's name, one of kNpyTypes
  std::array<std::int64_t, 3> shape;  // tokens, layers, top_k
  std::string_view data;
};

// The types of ids, in the order of IdType, and of float32 weights.
inline constexpr std::string_view kNpyTypes[] = {"|u1", "<u2", "<i2", "<i4", "<i8", "<f4"};
std::optional<IdType> id_type_named(std::string_view npy_type);
// The type of weights. NumPy has no bfloat16: its bits are stored as uint16.
constexpr std::string_view npy_type(WeightType type) {
  return type == WeightType::float32 ? kNpyTypes[5] : kNpyTypes[1];
}

// Format 1.0, C order, three dimensions of one of our types; ArgumentError for anything else.
NpyHeader read_npy_header(std::string_view file);

}  // namespace moetap::detail
