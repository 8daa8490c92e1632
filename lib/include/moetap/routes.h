// The rows that a reader returns, and their conversion to arrays, .npy and base64.
#pragma once

#include <moetap/export.h>
#include <moetap/shape.h>
#include <moetap/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace moetap {

namespace detail {
// Leaves bytes uninitialised that are about to be written. Zeroing them would take half of a read's
// time.
struct UnsetBytes : std::allocator<std::byte> {
  template <class>
  struct rebind {
    using other = UnsetBytes;
  };
  void construct(std::byte*) noexcept {}
  void construct(std::byte* at, std::byte value) noexcept { *at = value; }
};
}  // namespace detail

// The routes of positions [range().start, range().end) of one sequence, [tokens][row_bytes] as
// ModelShape lays a row out, with the state of each row.
class MOETAP_API Routes {
 public:
  // All rows missing (bytes 0xFF).
  Routes(ModelShape shape, TokenRange range);

  // As above with undefined bytes, for callers that write all of them.
  struct Unset {};
  Routes(ModelShape shape, TokenRange range, Unset);

  const ModelShape& shape() const { return shape_; }
  TokenRange range() const { return range_; }

  std::span<std::byte> bytes() { return ids_; }
  std::span<const std::byte> bytes() const { return ids_; }
  std::span<RowState> states() { return states_; }
  std::span<const RowState> states() const { return states_; }

  // By position in the sequence, not by index. RangeError outside range().
  std::span<const std::byte> row(std::int64_t position) const;
  RowState state(std::int64_t position) const;
  std::uint32_t id(std::int64_t position, int layer_index, int k) const;

  // weights(): see weights_of(). weight(): one weight, of either type, as float. ArgumentError if
  // the shape has no weights.
  template <class T>
  std::span<const T> weights(std::int64_t position) const;
  float weight(std::int64_t position, int layer_index, int k) const;

  std::size_t count(RowState state) const;
  bool all_present() const { return count(RowState::present) == states_.size(); }

  // Throws RowsNotPresent unless all rows are present, with the count and first positions of each
  // state.
  const Routes& require_present() const;

  // Splits into [start, position) and [position, end), e.g. at the prompt's length. RangeError
  // outside.
  std::pair<Routes, Routes> split(std::int64_t position) const;

  // The same rows with only these layers, e.g. those of a trainer's pipeline stage; shape() says
  // which. ArgumentError as ModelShape::with_layers().
  Routes with_layers(std::vector<int> moe_layers) const;

  // Appends the rows that follow. ArgumentError if the shapes (including layers) differ, or if
  // next.range().start is not range().end: a gap, or rows that are already here.
  void append(const Routes& next);

 private:
  std::size_t index(std::int64_t position) const;
  std::size_t index_in_row(int layer_index, int k) const;

  ModelShape shape_;
  TokenRange range_;
  std::vector<std::byte, detail::UnsetBytes> ids_;
  std::vector<RowState> states_;
};

// The weights within a row of this shape, [num_layers][top_k], without a copy. T is float or
// BFloat16, as the shape says (ArgumentError otherwise). All bits of a row that is not present are
// 1. `row` must be aligned as rows in Routes and RoutesView are.
template <class T>
std::span<const T> weights_of(const ModelShape& shape, std::span<const std::byte> row);
extern template MOETAP_API std::span<const float> weights_of(const ModelShape&,
                                                             std::span<const std::byte>);
extern template MOETAP_API std::span<const BFloat16> weights_of(const ModelShape&,
                                                                std::span<const std::byte>);

template <class T>
std::span<const T> Routes::weights(std::int64_t position) const {
  return weights_of<T>(shape_, row(position));
}

// Which layers an array has. The array itself does not say: its reader has to know.
struct ArrayLayers {
  bool all_hidden = false;     // all hidden layers, layer i at index i; false: MoE layers
  std::int64_t dense_id = -1;  // fills the layers that the shape does not name
};
inline constexpr ArrayLayers kMoeLayers{};
constexpr ArrayLayers hidden_layers(std::int64_t dense_id = -1) { return {true, dense_id}; }

// Converts ids to another type, [tokens][layers][top_k]. Rows that are not present become -1 in
// signed types; in unsigned types they are a RowsNotPresent error. This includes unverified rows: a
// caller that knows them to be right sets their states() to present first. RangeError if the type
// cannot represent every expert id, or the dense_id of layers that the shape does not name.
MOETAP_API std::vector<std::byte> to_ids(const Routes& routes, IdType type,
                                         ArrayLayers layers = kMoeLayers);

// The bytes of a NumPy .npy file (format 1.0, C order, shape (tokens, layers, top_k)), converted as
// by to_ids(). The second returns them in base64 (RFC 4648, padded), as vLLM's API does.
MOETAP_API std::string to_npy(const Routes& routes, IdType type, ArrayLayers layers = kMoeLayers);
MOETAP_API std::string to_npy_base64(const Routes& routes, IdType type,
                                     ArrayLayers layers = kMoeLayers);

// The weights in the shape's type, [tokens][layers][top_k], without the ids. They are NaN (all bits
// 1) in rows that are not present and in layers that the shape does not name. Present rows may have
// NaN too: only the ids or states say which rows are present. ArgumentError if the shape has no
// weights.
MOETAP_API std::vector<std::byte> to_weights(const Routes& routes, ArrayLayers layers = kMoeLayers);

// The bytes of a .npy file of the weights. NumPy has no bfloat16, so these are stored as uint16
// bits: numpy.load(file).view(ml_dtypes.bfloat16) or
// torch.from_numpy(numpy.load(file)).view(torch.bfloat16).
MOETAP_API std::string weights_to_npy(const Routes& routes, ArrayLayers layers = kMoeLayers);

MOETAP_API std::string base64_encode(std::span<const std::byte> bytes);
// ArgumentError with the offset of the first bad character, or of the end within a group.
MOETAP_API std::vector<std::byte> base64_decode(std::string_view text);

}  // namespace moetap
