// Rows whose every id tells where it belongs.
#pragma once

#include <moetap/routes.h>

#include <algorithm>
#include <cstring>

namespace moetap::test {

inline std::uint32_t sample_id(const ModelShape& shape, std::int64_t position, int layer, int k) {
  const std::int64_t number = position * 1009 + std::int64_t{layer} * 31 + std::int64_t{k} * 7;
  return static_cast<std::uint32_t>(number % shape.num_experts());
}

// All present. Weights, if the shape has some, are 0.
inline Routes sample_routes(const ModelShape& shape, TokenRange range) {
  Routes routes(shape, range);
  std::ranges::fill(routes.bytes(), std::byte{0});
  const std::size_t width = id_bytes(shape.id_type());
  for (std::int64_t position = range.start; position < range.end; ++position) {
    const auto index = static_cast<std::size_t>(position - range.start);
    routes.states()[index] = RowState::present;
    std::byte* next = routes.bytes().data() + index * shape.row_bytes();
    for (int layer = 0; layer < shape.num_layers(); ++layer) {
      for (int k = 0; k < shape.top_k(); ++k, next += width) {
        const std::uint32_t id = sample_id(shape, position, layer, k);
        std::memcpy(next, &id, width);  // little-endian
      }
    }
  }
  return routes;
}

}  // namespace moetap::test
