#include <moetap/block_store.h>
#include <moetap/error.h>

#include <fmt/format.h>

#include <algorithm>

#include "lib/internal/expert_ids.h"

namespace moetap {
BlockKey::BlockKey(std::span<const std::byte> bytes) : size_(bytes.size()) {
  if (bytes.empty() || bytes.size() > kMaxBytes) {
    throw ArgumentError(
        fmt::format("a block key of {} bytes; allowed are 1 to {}", bytes.size(), kMaxBytes));
  }
  std::ranges::copy(bytes, bytes_.begin());
}

std::string BlockKey::hex() const {
  std::string text;
  text.reserve(2 * size_);
  for (const std::byte byte : bytes()) {
    constexpr std::string_view digits = "0123456789abcdef";
    text += digits[std::to_integer<unsigned>(byte >> 4)];
    text += digits[std::to_integer<unsigned>(byte & std::byte{15})];
  }
  return text;
}

void BlockStoreOptions::validate() const {
  constexpr std::size_t kMaxVersion = 256;
  if (block_size < 1) {
    throw ArgumentError(
        fmt::format("a block store's block_size is {}; it must be at least 1", block_size));
  }
  if (max_bytes < block_bytes()) {
    throw ArgumentError(
        fmt::format("a block store's max_bytes is {}, less than one block: {} rows of {} take {}",
                    max_bytes, block_size, shape.to_string(), block_bytes()));
  }
  if (model_version.size() > kMaxVersion) {
    throw ArgumentError(
        fmt::format("a block store's model_version has {} bytes; allowed are up to {}",
                    model_version.size(), kMaxVersion));
  }
}

void BlockStoreOptions::require_block(std::size_t bytes) const {
  if (bytes == block_bytes()) return;
  throw ArgumentError(fmt::format("{} bytes for a block of {} rows of {}, which takes {}", bytes,
                                  block_size, shape.to_string(), block_bytes()));
}

bool BlockStoreOptions::can_be_present(std::span<const std::byte> rows) const {
  return detail::can_be_present(shape, rows);
}

void BlockStoreOptions::require_rows(std::span<const std::byte> rows) const {
  require_block(rows.size());
  if (can_be_present(rows)) return;
  const std::size_t row_bytes = shape.row_bytes();
  for (std::size_t i = 0; i < static_cast<std::size_t>(block_size); ++i) {
    const auto row = rows.subspan(i * row_bytes, row_bytes);
    if (!can_be_present(row)) detail::refuse_row(shape, row, fmt::format("a block's row {}", i));
  }
}

}  // namespace moetap
