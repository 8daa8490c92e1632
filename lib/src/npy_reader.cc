#include <moetap/error.h>
#include <moetap/routes_json.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "expert_ids.h"
#include "npy_header.h"

namespace moetap {
namespace {

// What ends a header.
bool is_padding(std::string_view text) {
  return text.ends_with('\n') && text.find_first_not_of(' ') == text.size() - 1;
}

// `bytes`: of an element.
void check_shape(const detail::NpyHeader& header, std::size_t bytes, const ModelShape& shape) {
  const auto [tokens, layers, top_k] = header.shape;
  if (layers != shape.num_layers() || top_k != shape.top_k()) {
    throw ArgumentError(fmt::format("an array of shape ({}, {}, {}) for rows of {}", tokens, layers,
                                    top_k, shape.to_string()));
  }
  const std::size_t row = shape.row_ids() * bytes;
  if (tokens < 0 || header.data.size() % row != 0 ||
      header.data.size() / row != static_cast<std::size_t>(tokens)) {
    throw ArgumentError(fmt::format("an array of {} tokens of {} bytes in {} bytes of data", tokens,
                                    row, header.data.size()));
  }
}

// One row's ids, narrowed; false if one is missing.
template <class From, class To>
bool narrow_row(const From* from, std::size_t count, int num_experts, To* to) {
  bool complete = true;
  for (std::size_t i = 0; i < count; ++i) {
    if constexpr (std::numeric_limits<From>::is_signed) {
      if (from[i] == -1) {
        complete = false;
        continue;
      }
    }
    // A negative one becomes a large one.
    if (static_cast<std::uint64_t>(from[i]) >= static_cast<std::uint64_t>(num_experts)) {
      throw RangeError(
          fmt::format("expert id {} of a model with {} experts", from[i], num_experts));
    }
    to[i] = static_cast<To>(from[i]);
  }
  return complete;
}

template <class From, class To>
void narrow(std::string_view data, Routes& routes) {
  const std::size_t count = routes.shape().row_ids();
  std::vector<From> from(count);
  std::vector<To> to(count);
  for (std::size_t i = 0; i < routes.states().size(); ++i) {
    std::memcpy(from.data(), data.data() + i * count * sizeof(From), count * sizeof(From));
    if (!narrow_row(from.data(), count, routes.shape().num_experts(), to.data())) continue;
    std::memcpy(routes.bytes().data() + i * routes.shape().row_bytes(), to.data(),
                routes.shape().ids_bytes());
    routes.states()[i] = RowState::present;
  }
}

template <class From>
void narrow(std::string_view data, Routes& routes) {
  if (routes.shape().id_type() == IdType::uint8) {
    narrow<From, std::uint8_t>(data, routes);
  } else {
    narrow<From, std::uint16_t>(data, routes);
  }
}

void narrow(std::string_view data, IdType type, Routes& routes) {
  switch (type) {
    case IdType::uint8:
      return narrow<std::uint8_t>(data, routes);
    case IdType::uint16:
      return narrow<std::uint16_t>(data, routes);
    case IdType::int16:
      return narrow<std::int16_t>(data, routes);
    case IdType::int32:
      return narrow<std::int32_t>(data, routes);
    case IdType::int64:
      return narrow<std::int64_t>(data, routes);
  }
}

// Rows whose states are `missing` or `present` and whose ids are there.
Routes ids_from_npy(std::string_view file, const ModelShape& shape, std::int64_t start) {
  const detail::NpyHeader header = detail::read_npy_header(file);
  const std::optional<IdType> type = detail::id_type_named(header.type);
  if (!type) {
    throw ArgumentError(
        fmt::format("a .npy file of '{}' for ids; give the weights beside it", header.type));
  }
  check_shape(header, id_bytes(*type), shape);
  const std::int64_t tokens = header.shape[0];
  if (start < 0 || start > std::numeric_limits<std::int64_t>::max() - tokens) {
    throw ArgumentError(fmt::format("{} rows from position {}", tokens, start));
  }
  Routes routes(shape, {start, start + tokens});
  narrow(header.data, *type, routes);
  return routes;
}

// Into the rows that have ids.
void take_weights(std::string_view file, Routes& routes) {
  const ModelShape& shape = routes.shape();
  const detail::NpyHeader header = detail::read_npy_header(file);
  const std::string_view expected = detail::npy_type(shape.weight_type());
  if (header.type != expected) {
    throw ArgumentError(fmt::format(
        "a .npy file of '{}' for {} weights, which are '{}': give the file of the weights second, "
        "and the shape that they were written with",
        header.type, weight_type_name(shape.weight_type()), expected));
  }
  const std::size_t bytes = shape.row_ids() * weight_bytes(shape.weight_type());
  check_shape(header, weight_bytes(shape.weight_type()), shape);
  if (header.shape[0] != routes.range().size()) {
    throw ArgumentError(
        fmt::format("weights of {} tokens beside ids of {}: give two files of the same routes",
                    header.shape[0], routes.range().size()));
  }
  for (std::size_t i = 0; i < routes.states().size(); ++i) {
    if (routes.states()[i] != RowState::present) continue;
    std::byte* const row = routes.bytes().data() + i * shape.row_bytes();
    detail::clear_gap(shape, row);
    std::memcpy(row + shape.weights_offset(), header.data.data() + i * bytes, bytes);
  }
}

}  // namespace

std::optional<IdType> detail::id_type_named(std::string_view npy_type) {
  const auto* found = std::ranges::find(kNpyTypes, npy_type);
  if (found - kNpyTypes > static_cast<std::ptrdiff_t>(IdType::int64)) return std::nullopt;
  return static_cast<IdType>(found - kNpyTypes);
}

// NumPy writes these three keys in this order, and so do we.
detail::NpyHeader detail::read_npy_header(std::string_view file) {
  constexpr std::size_t kPreamble = 10;
  if (file.size() < kPreamble || !file.starts_with(std::string_view("\x93NUMPY\x01\x00", 8))) {
    throw ArgumentError(
        fmt::format("{} bytes that do not begin as a .npy file of format 1.0 does", file.size()));
  }
  const auto size = static_cast<std::size_t>(static_cast<unsigned char>(file[8])) |
                    static_cast<std::size_t>(static_cast<unsigned char>(file[9])) << 8;
  if (file.size() - kPreamble < size) {
    throw ArgumentError(fmt::format("a .npy file of {} bytes, but its header alone has {}",
                                    file.size(), kPreamble + size));
  }
  const std::string dict(file.substr(kPreamble, size));
  char type[4] = {};
  long long shape[3] = {};
  int end = 0;
  std::sscanf(dict.c_str(),
              "{'descr': '%3[^']', 'fortran_order': False, 'shape': (%18lld, %18lld, %18lld), }%n",
              type, &shape[0], &shape[1], &shape[2], &end);
  const auto* const known = std::ranges::find(kNpyTypes, std::string_view(type));
  if (end == 0 || known == std::end(kNpyTypes) || !is_padding(std::string_view(dict).substr(end))) {
    throw ArgumentError(fmt::format(
        "a .npy header {}; it must be of a C-ordered array of little-endian uint8, uint16, int16, "
        "int32, int64 or float32 with the shape (tokens, num_layers, top_k)",
        dict.substr(0, 120)));
  }
  return {*known, {shape[0], shape[1], shape[2]}, file.substr(kPreamble + size)};
}

Routes from_npy(std::string_view file, const ModelShape& shape, std::int64_t start) {
  if (shape.weight_type() != WeightType::none) {
    throw ArgumentError(fmt::format("ids alone for rows of {}: give the file of their weights too",
                                    shape.to_string()));
  }
  return ids_from_npy(file, shape, start);
}

Routes from_npy(std::string_view ids, std::string_view weights, const ModelShape& shape,
                std::int64_t start) {
  if (shape.weight_type() == WeightType::none) {
    throw ArgumentError(
        fmt::format("weights for rows of {}, which have none: give shape.with_weights(), or the "
                    "file of the ids alone",
                    shape.to_string()));
  }
  Routes routes = ids_from_npy(ids, shape, start);
  take_weights(weights, routes);
  return routes;
}

}  // namespace moetap
