// The forms that rows leave in: other id types, NumPy files, base64.
#include <moetap/error.h>
#include <moetap/routes.h>

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "npy_header.h"

namespace moetap {
namespace {

static_assert(std::endian::native == std::endian::little, "rows and .npy files are little-endian");

template <class To, class From>
void convert(const Routes& routes, void* out) {
  const std::size_t ids = routes.shape().row_ids();
  const std::size_t row = routes.shape().row_bytes() / sizeof(From);  // whatever else it holds
  const auto* from = reinterpret_cast<const From*>(routes.bytes().data());
  auto* to = static_cast<To*>(out);
  for (const RowState state : routes.states()) {
    if (state == RowState::present) {
      for (std::size_t i = 0; i < ids; ++i) to[i] = static_cast<To>(from[i]);
    } else {
      std::fill_n(to, ids, static_cast<To>(-1));
    }
    from += row;
    to += ids;
  }
}

template <class To>
void convert(const Routes& routes, void* out) {
  if (routes.shape().id_type() == IdType::uint8) {
    convert<To, std::uint8_t>(routes, out);
  } else {
    convert<To, std::uint16_t>(routes, out);
  }
}

bool is_signed(IdType type) { return type != IdType::uint8 && type != IdType::uint16; }

std::string_view numpy_type(IdType type) {
  return detail::kNpyTypes[static_cast<std::size_t>(type)];
}

// Bytes of all ids as this type; throws what to_ids throws.
std::size_t checked_bytes(const Routes& routes, IdType type) {
  const ModelShape& shape = routes.shape();
  if (!holds_ids(type, shape.num_experts())) {
    throw RangeError(fmt::format("{} cannot hold the ids of {} experts; use a wider type",
                                 id_type_name(type), shape.num_experts()));
  }
  if (!is_signed(type)) routes.require_present();
  return routes.states().size() * shape.row_ids() * id_bytes(type);
}

void copy_weights(const Routes& routes, void* out) {
  const ModelShape& shape = routes.shape();
  const std::size_t bytes = shape.row_bytes() - shape.weights_offset();
  const std::byte* from = routes.bytes().data() + shape.weights_offset();
  auto* to = static_cast<std::byte*>(out);
  for (const RowState state : routes.states()) {
    if (state == RowState::present) {
      std::memcpy(to, from, bytes);
    } else {
      std::memset(to, 0xFF, bytes);
    }
    from += shape.row_bytes();
    to += bytes;
  }
}

std::size_t weights_bytes(const Routes& routes) {
  const ModelShape& shape = routes.shape();
  if (shape.weight_type() == WeightType::none) {
    throw ArgumentError(
        fmt::format("weights of rows of {}, which have none: capture them with "
                    "ModelShape::with_weights()",
                    shape.to_string()));
  }
  return routes.states().size() * shape.row_ids() * weight_bytes(shape.weight_type());
}

void convert(const Routes& routes, IdType type, void* out) {
  switch (type) {
    case IdType::uint8:
      return convert<std::uint8_t>(routes, out);
    case IdType::uint16:
      return convert<std::uint16_t>(routes, out);
    case IdType::int16:
      return convert<std::int16_t>(routes, out);
    case IdType::int32:
      return convert<std::int32_t>(routes, out);
    case IdType::int64:
      return convert<std::int64_t>(routes, out);
  }
}

// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html: magic, version 1.0, the
// header's length in two bytes, the header padded with spaces and ended by a newline so that the
// data starts at a multiple of 64.
std::string npy_header(const Routes& routes, std::string_view type) {
  std::string dict =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}, {}, {}), }}", type,
                  routes.range().size(), routes.shape().num_layers(), routes.shape().top_k());
  constexpr std::size_t kPreamble = 10;
  const std::size_t total = (kPreamble + dict.size() + 1 + 63) / 64 * 64;
  dict.append(total - kPreamble - dict.size() - 1, ' ');
  dict += '\n';

  std::string header("\x93NUMPY\x01\x00", 8);
  header += static_cast<char>(dict.size() & 0xFF);
  header += static_cast<char>(dict.size() >> 8);
  return header + dict;
}

}  // namespace

std::vector<std::byte> to_ids(const Routes& routes, IdType type) {
  std::vector<std::byte> ids(checked_bytes(routes, type));
  convert(routes, type, ids.data());
  return ids;
}

std::string to_npy(const Routes& routes, IdType type) {
  const std::size_t bytes = checked_bytes(routes, type);
  std::string file = npy_header(routes, numpy_type(type));
  const std::size_t header = file.size();
  file.resize(header + bytes);
  convert(routes, type, file.data() + header);
  return file;
}

std::vector<std::byte> to_weights(const Routes& routes) {
  std::vector<std::byte> weights(weights_bytes(routes));
  copy_weights(routes, weights.data());
  return weights;
}

std::string weights_to_npy(const Routes& routes) {
  const std::size_t bytes = weights_bytes(routes);
  std::string file = npy_header(routes, detail::npy_type(routes.shape().weight_type()));
  const std::size_t header = file.size();
  file.resize(header + bytes);
  copy_weights(routes, file.data() + header);
  return file;
}

std::string to_npy_base64(const Routes& routes, IdType type) {
  const std::string file = to_npy(routes, type);
  return base64_encode(std::as_bytes(std::span(file)));
}

}  // namespace moetap
