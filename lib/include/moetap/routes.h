// Rows that left moetap: what a reader returns, and the forms they travel on in.
#pragma once

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
// Bytes that are about to be written are not zeroed first: that would be half of a read's time.
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
class Routes {
 public:
  // All rows missing (bytes 0xFF).
  Routes(ModelShape shape, TokenRange range);

  // As above, but with any bytes: for who writes them all.
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

  // See weights_of(). And one of them, of either type: ArgumentError if the shape has none.
  template <class T>
  std::span<const T> weights(std::int64_t position) const;
  float weight(std::int64_t position, int layer_index, int k) const;

  std::size_t count(RowState state) const;
  bool all_present() const { return count(RowState::present) == states_.size(); }

  // RowsNotPresent, with how many rows are in which state and the first positions of each.
  const Routes& require_present() const;

  // [start, position) and [position, end), e.g. at the prompt's length. RangeError outside.
  std::pair<Routes, Routes> split(std::int64_t position) const;

  // Of some of the layers only, e.g. those of a trainer's pipeline stage; shape() says which.
  // ArgumentError as ModelShape::with_layers().
  Routes with_layers(std::vector<int> moe_layers) const;

  // Appends what follows. ArgumentError if the shapes differ (layers, too) or next.range().start is
  // not range().end (a gap, or rows that the caller already has).
  void append(const Routes& next);

 private:
  std::size_t index(std::int64_t position) const;
  std::size_t index_in_row(int layer_index, int k) const;

  ModelShape shape_;
  TokenRange range_;
  std::vector<std::byte, detail::UnsetBytes> ids_;
  std::vector<RowState> states_;
};

// The weights in a row of this shape, [num_layers][top_k] beside the ids, where they are: float or
// BFloat16, as the shape says (ArgumentError otherwise). All bits of a row that is not present are
// 1. `row` is aligned as rows in Routes and RoutesView are.
template <class T>
std::span<const T> weights_of(const ModelShape& shape, std::span<const std::byte> row);
extern template std::span<const float> weights_of(const ModelShape&, std::span<const std::byte>);
extern template std::span<const BFloat16> weights_of(const ModelShape&, std::span<const std::byte>);

template <class T>
std::span<const T> Routes::weights(std::int64_t position) const {
  return weights_of<T>(shape_, row(position));
}

// The layers of an array, which has no room for their ids: its reader has to know the form.
struct ArrayLayers {
  bool all_hidden = false;     // num_hidden_layers, layer i at index i; else the shape's MoE layers
  std::int64_t dense_id = -1;  // what the layers that the shape does not name are filled with
};
inline constexpr ArrayLayers kMoeLayers{};
constexpr ArrayLayers hidden_layers(std::int64_t dense_id = -1) { return {true, dense_id}; }

// Ids as another type, [tokens][layers][top_k]. Rows that are not present become -1 in the
// signed types and are a RowsNotPresent error in the unsigned ones. That includes unverified rows:
// whoever vouches for them sets their states() to present first. RangeError if the type cannot hold
// every id of the model, or the dense_id of layers that the shape does not name.
std::vector<std::byte> to_ids(const Routes& routes, IdType type, ArrayLayers layers = kMoeLayers);

// The bytes of a NumPy .npy file (format 1.0, C order, shape (tokens, layers, top_k)), as
// to_ids converts them; and the same in base64 (RFC 4648, padded), as vLLM's API returns them.
std::string to_npy(const Routes& routes, IdType type, ArrayLayers layers = kMoeLayers);
std::string to_npy_base64(const Routes& routes, IdType type, ArrayLayers layers = kMoeLayers);

// The weights as they are, [tokens][layers][top_k] without the ids. Those of a row that is not
// present are NaN (all bits 1), and so may others be: the ids or states say which rows are there.
// So are those of layers that the shape does not name. ArgumentError if the shape has none.
std::vector<std::byte> to_weights(const Routes& routes, ArrayLayers layers = kMoeLayers);

// The bytes of a .npy file of them. NumPy has no bfloat16, so that these are their bits as uint16:
// numpy.load(file).view(ml_dtypes.bfloat16) or
// torch.from_numpy(numpy.load(file)).view(torch.bfloat16).
std::string weights_to_npy(const Routes& routes, ArrayLayers layers = kMoeLayers);

std::string base64_encode(std::span<const std::byte> bytes);
// ArgumentError with the offset of the first bad character, or of the end within a group.
std::vector<std::byte> base64_decode(std::string_view text);

}  // namespace moetap
