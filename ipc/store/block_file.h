// The format of a block's file: [magic 8][version 4][CRC-32C of all that follows 4][description]
// [rows], little-endian. The description says what the rows are of: shape, block size, model
// version, key.
#pragma once

#include <moetap/block_store.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace moetap {

class BlockFile {
 public:
  static constexpr std::string_view kMagic = "moetapBK";
  static constexpr std::string_view kSuffix = ".routes";

  explicit BlockFile(BlockStoreOptions options);

  // Differs for other model versions and shapes, so that stores of several can share a directory.
  std::string name(const BlockKey& key) const;
  std::size_t bytes(const BlockKey& key) const;

  void encode(const BlockKey& key, std::span<const std::byte> rows,
              std::vector<std::byte>& file) const;

  // damaged: begins like our files, but encode() cannot have made it from valid rows. foreign:
  // anything else.
  enum class Kind { good, damaged, foreign };
  Kind check(const BlockKey& key, std::span<const std::byte> file) const;

  // The rows of a good file.
  std::span<const std::byte> rows(std::span<const std::byte> file) const {
    return file.last(block_bytes_);
  }

 private:
  BlockStoreOptions options_;
  std::vector<std::byte> description_;  // without the key
  std::size_t block_bytes_;
  std::string suffix_;
};

}  // namespace moetap
