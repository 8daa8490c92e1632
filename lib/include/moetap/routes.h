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

// The routes of positions [range().start, range().end) of one sequence: narrow ids,
// [tokens][num_layers][top_k], with the state of each row.
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

  std::size_t count(RowState state) const;
  bool all_present() const { return count(RowState::present) == states_.size(); }

  // RowsNotPresent, with how many rows are in which state and the first positions of each.
  const Routes& require_present() const;

  // [start, position) and [position, end), e.g. at the prompt's length. RangeError outside.
  std::pair<Routes, Routes> split(std::int64_t position) const;

  // Appends what follows. ArgumentError if the shapes differ or next.range().start is not
  // range().end (a gap, or rows that the caller already has).
  void append(const Routes& next);

 private:
  std::size_t index(std::int64_t position) const;

  ModelShape shape_;
  TokenRange range_;
  std::vector<std::byte, detail::UnsetBytes> ids_;
  std::vector<RowState> states_;
};

// Ids as another type, [tokens][num_layers][top_k]. Rows that are not present become -1 in the
// signed types and are a RowsNotPresent error in the unsigned ones. That includes unverified rows:
// whoever vouches for them sets their states() to present first. RangeError if the type cannot hold
// every id of the model.
std::vector<std::byte> to_ids(const Routes& routes, IdType type);

// The bytes of a NumPy .npy file (format 1.0, C order, shape (tokens, num_layers, top_k)), as
// to_ids converts them; and the same in base64 (RFC 4648, padded), as vLLM's API returns them.
std::string to_npy(const Routes& routes, IdType type);
std::string to_npy_base64(const Routes& routes, IdType type);

std::string base64_encode(std::span<const std::byte> bytes);
// ArgumentError with the offset of the first bad character.
std::vector<std::byte> base64_decode(std::string_view text);

}  // namespace moetap
