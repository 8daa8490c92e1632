#include <moetap/error.h>
#include <moetap/picks.h>
#include <moetap/routes_json.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "lib/internal/expert_ids.h"
#include "lib/internal/json_text.h"
#include "lib/internal/layer_runs.h"
#include "lib/internal/text.h"
#include "lib/rows/npy_header.h"

namespace moetap {
namespace {

// The end of a header.
bool is_padding(std::string_view text) {
  return text.ends_with('\n') && text.find_first_not_of(' ') == text.size() - 1;
}

// The layers that a file's rows have. `bytes`: size of an element.
ArrayLayers layers_of(const detail::NpyHeader& header, std::size_t bytes, const ModelShape& shape,
                      std::int64_t dense_id) {
  const auto [tokens, layers, top_k] = header.shape;
  const bool all = layers != shape.num_layers();
  if ((all && layers != shape.num_hidden_layers()) || top_k != shape.top_k()) {
    throw ArgumentError(fmt::format(
        "an array of shape ({}, {}, {}) for rows of {}: it must be (tokens, {}, {}) of MoE layers "
        "{}, or (tokens, {}, {}) of all hidden layers",
        tokens, layers, top_k, shape.to_string(), shape.num_layers(), shape.top_k(),
        detail::join_ranges(shape.moe_layers()), shape.num_hidden_layers(), shape.top_k()));
  }
  const std::size_t row = static_cast<std::size_t>(layers * top_k) * bytes;
  if (tokens < 0 || header.data.size() % row != 0 ||
      header.data.size() / row != static_cast<std::size_t>(tokens)) {
    throw ArgumentError(
        fmt::format("a .npy file whose header says {} tokens of {} bytes, but {} bytes follow it, "
                    "which are {} tokens{}: it is cut off or damaged, write or copy it again",
                    tokens, row, header.data.size(), header.data.size() / row,
                    header.data.size() % row == 0 ? "" : " and a part of one"));
  }
  return {.all_hidden = all, .dense_id = dense_id};
}

// The rows of a file in the model's layout, from either form.
template <class From, class To>
class Narrow {
 public:
  Narrow(const ModelShape& shape, ArrayLayers layers)
      : shape_(shape),
        layers_(layers),
        top_k_(static_cast<std::size_t>(shape.top_k())),
        from_(detail::array_row_size(shape, layers.all_hidden)),
        to_(shape.row_ids()) {}

  void operator()(std::string_view data, Routes& routes) {
    const std::size_t bytes = from_.size() * sizeof(From);
    for (std::size_t i = 0; i < routes.states().size(); ++i) {
      const std::int64_t position = routes.range().start + static_cast<std::int64_t>(i);
      std::memcpy(from_.data(), data.data() + i * bytes, bytes);
      check_others(position);
      if (!narrow_row(position)) continue;
      std::memcpy(routes.bytes().data() + i * shape_.row_bytes(), to_.data(), shape_.ids_bytes());
      routes.states()[i] = RowState::present;
    }
  }

 private:
  // Layers that the shape does not name must have the declared value; otherwise they are not dense.
  void check_others(std::int64_t position) const {
    if (!layers_.all_hidden) return;
    auto named = shape_.moe_layers().begin();
    for (int layer = 0; layer < shape_.num_hidden_layers(); ++layer) {
      if (named != shape_.moe_layers().end() && *named == layer) {
        ++named;
        continue;
      }
      const From* ids = from_.data() + static_cast<std::size_t>(layer) * top_k_;
      const From* const end = ids + top_k_;
      const From* const other = std::find_if(
          ids, end, [&](From id) { return static_cast<std::int64_t>(id) != layers_.dense_id; });
      if (other == end) continue;
      throw ArgumentError(fmt::format(
          "row of position {}, layer {}: id {} where the shape has no router, and {} was declared "
          "for such layers: give the model that the file was written for, or its dense_id",
          position, layer, *other, layers_.dense_id));
    }
  }

  // False if a route is missing.
  bool narrow_row(std::int64_t position) {
    bool complete = true;
    To* to = to_.data();
    for (int layer = 0; layer < shape_.num_layers(); ++layer, to += top_k_) {
      const auto index = static_cast<std::size_t>(layer);
      const std::size_t place =
          layers_.all_hidden ? static_cast<std::size_t>(shape_.moe_layers()[index]) : index;
      complete &= narrow_layer(from_.data() + place * top_k_, to, layer, position);
    }
    return complete;
  }

  bool narrow_layer(const From* from, To* to, int layer, std::int64_t position) const {
    const auto num_experts = static_cast<std::uint32_t>(shape_.num_experts());
    bool complete = true;
    for (std::size_t k = 0; k < top_k_; ++k) {
      if (std::numeric_limits<From>::is_signed && from[k] == static_cast<From>(-1)) {
        complete = false;
        continue;
      }
      // A negative id becomes a large one.
      if (static_cast<std::uint64_t>(from[k]) >= num_experts) {
        detail::refuse_id(shape_, layer, static_cast<std::int64_t>(from[k]), name(position));
      }
      to[k] = static_cast<To>(from[k]);
    }
    if (shape_.repeats_experts() || !repeats_an_expert(from, shape_.top_k(), num_experts)) {
      return complete;
    }
    const int k = repeated_pick(from, shape_.top_k(), num_experts);
    detail::refuse_repeated(shape_, layer, static_cast<std::int64_t>(from[k]), name(position));
  }

  static std::string name(std::int64_t position) {
    return fmt::format("row of position {}", position);
  }

  const ModelShape& shape_;
  ArrayLayers layers_;
  std::size_t top_k_;
  std::vector<From> from_;
  std::vector<To> to_;
};

template <class From>
void narrow(std::string_view data, ArrayLayers layers, Routes& routes) {
  if (routes.shape().id_type() == IdType::uint8) {
    Narrow<From, std::uint8_t>(routes.shape(), layers)(data, routes);
  } else {
    Narrow<From, std::uint16_t>(routes.shape(), layers)(data, routes);
  }
}

void narrow(std::string_view data, IdType type, ArrayLayers layers, Routes& routes) {
  switch (type) {
    case IdType::uint8:
      return narrow<std::uint8_t>(data, layers, routes);
    case IdType::uint16:
      return narrow<std::uint16_t>(data, layers, routes);
    case IdType::int16:
      return narrow<std::int16_t>(data, layers, routes);
    case IdType::int32:
      return narrow<std::int32_t>(data, layers, routes);
    case IdType::int64:
      return narrow<std::int64_t>(data, layers, routes);
  }
}

// The rows of a file of ids, each missing or present.
Routes ids_from_npy(std::string_view file, const ModelShape& shape, std::int64_t start,
                    std::int64_t dense_id) {
  const detail::NpyHeader header = detail::read_npy_header(file);
  const std::optional<IdType> type = detail::id_type_named(header.type);
  if (!type) {
    throw ArgumentError(
        fmt::format("a .npy file of '{}' for ids, which are integers; give the file of the weights "
                    "second, after that of the ids",
                    header.type));
  }
  const ArrayLayers layers = layers_of(header, id_bytes(*type), shape, dense_id);
  const std::int64_t tokens = header.shape[0];
  if (start < 0 || start > std::numeric_limits<std::int64_t>::max() - tokens) {
    throw ArgumentError(
        fmt::format("{} rows from position {}; the position of the first row must be 0 to {}",
                    tokens, start, std::numeric_limits<std::int64_t>::max() - tokens));
  }
  Routes routes(shape, {start, start + tokens});
  narrow(header.data, *type, layers, routes);
  return routes;
}

// Adds weights to the rows that have ids. Weights of layers that the shape does not name are
// ignored.
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
  const std::size_t width = weight_bytes(shape.weight_type());
  const ArrayLayers layers = layers_of(header, width, shape, 0);
  if (header.shape[0] != routes.range().size()) {
    throw ArgumentError(
        fmt::format("weights of {} tokens beside ids of {}: give two files of the same routes",
                    header.shape[0], routes.range().size()));
  }
  const std::size_t of_row = detail::array_row_size(shape, layers.all_hidden) * width;
  const std::vector<detail::LayerRun> runs = detail::layer_runs(shape, layers.all_hidden);
  for (std::size_t i = 0; i < routes.states().size(); ++i) {
    if (routes.states()[i] != RowState::present) continue;
    std::byte* const row = routes.bytes().data() + i * shape.row_bytes();
    detail::clear_gap(shape, row);
    for (const detail::LayerRun& run : runs) {
      std::memcpy(row + shape.weights_offset() + run.row * width,
                  header.data.data() + i * of_row + run.array * width, run.count * width);
    }
  }
}

// A header's text without padding, in one line.
std::string shown_header(std::string_view dict) {
  const auto last = dict.find_last_not_of(" \n");
  return detail::shown(std::string(dict.substr(0, last == dict.npos ? 0 : last + 1)));
}

// Why it is no file of format 1.0.
std::string not_npy(std::string_view file) {
  constexpr std::string_view kMagic = "\x93NUMPY";
  if (file.starts_with(kMagic) && file.size() > kMagic.size() + 1 &&
      file.substr(kMagic.size(), 2) != std::string_view("\x01\x00", 2)) {
    return fmt::format(
        "a .npy file of format {}.{}; 1.0 is read, which numpy.save() writes for such arrays: load "
        "it with NumPy and save it again",
        static_cast<unsigned char>(file[kMagic.size()]),
        static_cast<unsigned char>(file[kMagic.size() + 1]));
  }
  return fmt::format(
      "{} bytes that do not begin as a .npy file of format 1.0 does: give what to_npy() or "
      "numpy.save() wrote",
      file.size());
}

// One dimension of the shape. Sizes of arrays are computed from three of them.
std::int64_t array_size(const char* digits) {
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  std::int64_t size = 0;
  const char* const end = digits + std::strlen(digits);
  const auto [last, error] = std::from_chars(digits, end, size);
  if (error != std::errc() || last != end || size > kMost) {
    throw ArgumentError(
        fmt::format("a .npy header whose shape has {}; at most {} are possible: the file is "
                    "damaged, or no array "
                    "of (tokens, layers, top_k)",
                    digits, kMost));
  }
  return size;
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
    throw ArgumentError(not_npy(file));
  }
  const auto size = static_cast<std::size_t>(static_cast<unsigned char>(file[8])) |
                    static_cast<std::size_t>(static_cast<unsigned char>(file[9])) << 8;
  if (file.size() - kPreamble < size) {
    throw ArgumentError(fmt::format(
        "a .npy file of {} bytes, but its header alone has {}: it is cut off, write or copy it "
        "again",
        file.size(), kPreamble + size));
  }
  const std::string dict(file.substr(kPreamble, size));
  char type[4] = {};
  char sizes[3][41] = {};
  int end = 0;
  std::sscanf(
      dict.c_str(),
      "{'descr': '%3[^']', 'fortran_order': False, 'shape': (%40[-0-9], %40[-0-9], %40[-0-9]), "
      "}%n",
      type, sizes[0], sizes[1], sizes[2], &end);
  const auto* const known = std::ranges::find(kNpyTypes, std::string_view(type));
  if (end == 0 || known == std::end(kNpyTypes) || !is_padding(std::string_view(dict).substr(end))) {
    throw ArgumentError(fmt::format(
        "a .npy header {}; it must be of a C-ordered array of little-endian uint8, uint16, int16, "
        "int32, int64 or float32 with the shape (tokens, layers, top_k)",
        shown_header(dict)));
  }
  return {*known,
          {array_size(sizes[0]), array_size(sizes[1]), array_size(sizes[2])},
          file.substr(kPreamble + size)};
}

Routes from_npy(std::string_view file, const ModelShape& shape, std::int64_t start,
                std::int64_t dense_id) {
  if (shape.weight_type() != WeightType::none) {
    throw ArgumentError(fmt::format("ids alone for rows of {}: give the file of their weights too",
                                    shape.to_string()));
  }
  return ids_from_npy(file, shape, start, dense_id);
}

Routes from_npy(std::string_view ids, std::string_view weights, const ModelShape& shape,
                std::int64_t start, std::int64_t dense_id) {
  if (shape.weight_type() == WeightType::none) {
    throw ArgumentError(
        fmt::format("weights for rows of {}, which have none: give shape.with_weights(), or the "
                    "file of the ids alone",
                    shape.to_string()));
  }
  Routes routes = ids_from_npy(ids, shape, start, dense_id);
  take_weights(weights, routes);
  return routes;
}

}  // namespace moetap
