// Conversion of rows: other id types, NumPy files, base64.
#include <moetap/error.h>
#include <moetap/routes.h>

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "lib/internal/layer_runs.h"
#include "lib/rows/npy_header.h"

namespace moetap {
namespace {

static_assert(std::endian::native == std::endian::little, "rows and .npy files are little-endian");

// The positions of a row's layers in an array, and the array's number of elements per row.
class Placing {
 public:
  Placing(const ModelShape& shape, ArrayLayers layers)
      : size_(detail::array_row_size(shape, layers.all_hidden)),
        has_others_(size_ > shape.row_ids()),
        runs_(detail::layer_runs(shape, layers.all_hidden)) {}

  std::size_t size() const { return size_; }
  bool has_others() const { return has_others_; }

  // Copies each layer's elements to its place; other elements stay as they are.
  template <class From, class To>
  void put(const From* from, To* to) const {
    for (const detail::LayerRun& run : runs_) {
      const From* const own = from + run.row;
      To* const place = to + run.array;
      for (std::size_t i = 0; i < run.count; ++i) place[i] = static_cast<To>(own[i]);
    }
  }

 private:
  std::size_t size_;
  bool has_others_;
  std::vector<detail::LayerRun> runs_;
};

template <class To, class From>
void convert(const Routes& routes, ArrayLayers layers, void* out) {
  const ModelShape& shape = routes.shape();
  const Placing placing(shape, layers);
  const std::vector<To> missing(shape.row_ids(), static_cast<To>(-1));
  const std::size_t row = shape.row_bytes() / sizeof(From);  // whatever else it holds
  const auto* from = reinterpret_cast<const From*>(routes.bytes().data());
  auto* to = static_cast<To*>(out);
  for (const RowState state : routes.states()) {
    if (placing.has_others()) {
      std::fill_n(to, placing.size(), static_cast<To>(layers.dense_id));
    }
    if (state == RowState::present) {
      placing.put(from, to);
    } else {
      placing.put(missing.data(), to);
    }
    from += row;
    to += placing.size();
  }
}

template <class To>
void convert(const Routes& routes, ArrayLayers layers, void* out) {
  if (routes.shape().id_type() == IdType::uint8) {
    convert<To, std::uint8_t>(routes, layers, out);
  } else {
    convert<To, std::uint16_t>(routes, layers, out);
  }
}

bool is_signed(IdType type) { return type != IdType::uint8 && type != IdType::uint16; }

bool holds(IdType type, std::int64_t id) {
  const auto bits = static_cast<int>(8 * id_bytes(type)) - (is_signed(type) ? 1 : 0);
  if (bits >= 63) return true;
  return id < std::int64_t{1} << bits && id >= (is_signed(type) ? -(std::int64_t{1} << bits) : 0);
}

std::string_view numpy_type(IdType type) {
  return detail::kNpyTypes[static_cast<std::size_t>(type)];
}

// The size in bytes of all ids as this type; throws as to_ids().
std::size_t checked_bytes(const Routes& routes, IdType type, ArrayLayers layers) {
  const ModelShape& shape = routes.shape();
  if (!holds_ids(type, shape.num_experts())) {
    throw RangeError(fmt::format("{} cannot hold the ids of {} experts; use a wider type",
                                 id_type_name(type), shape.num_experts()));
  }
  const Placing placing(shape, layers);
  if (placing.has_others() && !holds(type, layers.dense_id)) {
    throw RangeError(
        fmt::format("{} cannot hold {}, the dense_id of the layers that have no rows; use another "
                    "type, or declare another",
                    id_type_name(type), layers.dense_id));
  }
  if (!is_signed(type)) routes.require_present();
  return routes.states().size() * placing.size() * id_bytes(type);
}

template <class Bits>
void copy_weights(const Routes& routes, ArrayLayers layers, void* out) {
  const ModelShape& shape = routes.shape();
  const Placing placing(shape, layers);
  const std::byte* from = routes.bytes().data() + shape.weights_offset();
  auto* to = static_cast<Bits*>(out);
  for (const RowState state : routes.states()) {
    std::fill_n(to, placing.size(), static_cast<Bits>(-1));
    if (state == RowState::present) placing.put(reinterpret_cast<const Bits*>(from), to);
    from += shape.row_bytes();
    to += placing.size();
  }
}

void copy_weights(const Routes& routes, ArrayLayers layers, void* out) {
  if (routes.shape().weight_type() == WeightType::float32) {
    copy_weights<std::uint32_t>(routes, layers, out);
  } else {
    copy_weights<std::uint16_t>(routes, layers, out);
  }
}

std::size_t weights_bytes(const Routes& routes, ArrayLayers layers) {
  const ModelShape& shape = routes.shape();
  if (shape.weight_type() == WeightType::none) {
    throw ArgumentError(
        fmt::format("weights of rows of {}, which have none: capture them with "
                    "ModelShape::with_weights()",
                    shape.to_string()));
  }
  return routes.states().size() * detail::array_row_size(shape, layers.all_hidden) *
         weight_bytes(shape.weight_type());
}

void convert(const Routes& routes, IdType type, ArrayLayers layers, void* out) {
  switch (type) {
    case IdType::uint8:
      return convert<std::uint8_t>(routes, layers, out);
    case IdType::uint16:
      return convert<std::uint16_t>(routes, layers, out);
    case IdType::int16:
      return convert<std::int16_t>(routes, layers, out);
    case IdType::int32:
      return convert<std::int32_t>(routes, layers, out);
    case IdType::int64:
      return convert<std::int64_t>(routes, layers, out);
  }
}

// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html: magic, version 1.0, the
// header's length in two bytes, then the header, padded with spaces and ended by a newline, so that
// the data starts at a multiple of 64.
std::string npy_header(const Routes& routes, std::string_view type, ArrayLayers layers) {
  const ModelShape& shape = routes.shape();
  const int num_layers = layers.all_hidden ? shape.num_hidden_layers() : shape.num_layers();
  std::string dict =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}, {}, {}), }}", type,
                  routes.range().size(), num_layers, shape.top_k());
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

std::vector<std::byte> to_ids(const Routes& routes, IdType type, ArrayLayers layers) {
  std::vector<std::byte> ids(checked_bytes(routes, type, layers));
  convert(routes, type, layers, ids.data());
  return ids;
}

std::string to_npy(const Routes& routes, IdType type, ArrayLayers layers) {
  const std::size_t bytes = checked_bytes(routes, type, layers);
  std::string file = npy_header(routes, numpy_type(type), layers);
  const std::size_t header = file.size();
  file.resize(header + bytes);
  convert(routes, type, layers, file.data() + header);
  return file;
}

std::vector<std::byte> to_weights(const Routes& routes, ArrayLayers layers) {
  std::vector<std::byte> weights(weights_bytes(routes, layers));
  copy_weights(routes, layers, weights.data());
  return weights;
}

std::string weights_to_npy(const Routes& routes, ArrayLayers layers) {
  const std::size_t bytes = weights_bytes(routes, layers);
  std::string file = npy_header(routes, detail::npy_type(routes.shape().weight_type()), layers);
  const std::size_t header = file.size();
  file.resize(header + bytes);
  copy_weights(routes, layers, file.data() + header);
  return file;
}

std::string to_npy_base64(const Routes& routes, IdType type, ArrayLayers layers) {
  const std::string file = to_npy(routes, type, layers);
  return base64_encode(std::as_bytes(std::span(file)));
}

}  // namespace moetap
