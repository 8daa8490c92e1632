// The head of a .npy file, as NumPy writes it for an array like ours.
#pragma once

#include <moetap/types.h>

#include <array>
#include <cstdint>
#include <string_view>

namespace moetap::detail {

struct NpyHeader {
  IdType type;
  std::array<std::int64_t, 3> shape;  // tokens, num_layers, top_k
  std::string_view data;
};

// Format 1.0, C order, three dimensions of one of our types; ArgumentError for anything else.
NpyHeader read_npy_header(std::string_view file);

}  // namespace moetap::detail
