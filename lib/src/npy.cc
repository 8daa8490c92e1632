// The forms that rows leave in: other id types, NumPy files, base64.
#include <moetap/error.h>
#include <moetap/routes.h>

#include <fmt/format.h>

#include <array>
#include <bit>
#include <limits>
#include <type_traits>

namespace moetap {
namespace {

static_assert(std::endian::native == std::endian::little, "rows and .npy files are little-endian");

template <class To, class From>
void convert(const Routes& routes, std::vector<std::byte>& out) {
  const std::size_t ids = routes.shape().row_ids();
  const auto* from = reinterpret_cast<const From*>(routes.bytes().data());
  auto* to = reinterpret_cast<To*>(out.data());
  for (const RowState state : routes.states()) {
    if (state == RowState::present) {
      for (std::size_t i = 0; i < ids; ++i) to[i] = static_cast<To>(from[i]);
    } else {
      std::fill_n(to, ids, static_cast<To>(-1));
    }
    from += ids;
    to += ids;
  }
}

template <class To>
void convert(const Routes& routes, std::vector<std::byte>& out) {
  if (routes.shape().id_type() == IdType::uint8) {
    convert<To, std::uint8_t>(routes, out);
  } else {
    convert<To, std::uint16_t>(routes, out);
  }
}

bool is_signed(IdType type) { return type != IdType::uint8 && type != IdType::uint16; }

std::string_view numpy_type(IdType type) {
  constexpr std::string_view names[] = {"|u1", "<u2", "<i2", "<i4", "<i8"};
  return names[static_cast<std::size_t>(type)];
}

}  // namespace

std::vector<std::byte> to_ids(const Routes& routes, IdType type) {
  const ModelShape& shape = routes.shape();
  if (!holds_ids(type, shape.num_experts())) {
    throw RangeError(fmt::format("{} cannot hold the ids of {} experts; use a wider type",
                                 id_type_name(type), shape.num_experts()));
  }
  if (!is_signed(type)) routes.require_present();
  std::vector<std::byte> out(routes.states().size() * shape.row_ids() * id_bytes(type));
  switch (type) {
    case IdType::uint8:
      convert<std::uint8_t>(routes, out);
      break;
    case IdType::uint16:
      convert<std::uint16_t>(routes, out);
      break;
    case IdType::int16:
      convert<std::int16_t>(routes, out);
      break;
    case IdType::int32:
      convert<std::int32_t>(routes, out);
      break;
    case IdType::int64:
      convert<std::int64_t>(routes, out);
      break;
  }
  return out;
}

// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html: magic, version 1.0, the
// header's length in two bytes, the header padded with spaces and ended by a newline so that the
// data starts at a multiple of 64.
std::string to_npy(const Routes& routes, IdType type) {
  const std::vector<std::byte> ids = to_ids(routes, type);
  std::string header = fmt::format(
      "{{'descr': '{}', 'fortran_order': False, 'shape': ({}, {}, {}), }}", numpy_type(type),
      routes.range().size(), routes.shape().num_layers(), routes.shape().top_k());
  constexpr std::size_t kPreamble = 10;
  const std::size_t total = (kPreamble + header.size() + 1 + 63) / 64 * 64;
  header.append(total - kPreamble - header.size() - 1, ' ');
  header += '\n';

  std::string file("\x93NUMPY\x01\x00", 8);
  file.reserve(total + ids.size());
  file += static_cast<char>(header.size() & 0xFF);
  file += static_cast<char>(header.size() >> 8);
  file += header;
  file.append(reinterpret_cast<const char*>(ids.data()), ids.size());
  return file;
}

std::string to_npy_base64(const Routes& routes, IdType type) {
  const std::string file = to_npy(routes, type);
  return base64_encode(std::as_bytes(std::span(file)));
}

}  // namespace moetap
