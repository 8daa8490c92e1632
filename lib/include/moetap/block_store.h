// Rows of full KV blocks under the engine's block hashes, so that routes follow blocks that are
// offloaded, and a prefix hit in another process finds them.
#pragma once

#include <moetap/shape.h>
#include <moetap/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace moetap {

// An engine's hash of a block's content: of all tokens up to its end, and of whatever else makes
// its keys and values (adapters, images). Opaque, 1 to 64 bytes; ArgumentError otherwise.
class BlockKey {
 public:
  static constexpr std::size_t kMaxBytes = 64;

  explicit BlockKey(std::span<const std::byte> bytes);
  explicit BlockKey(std::string_view bytes) : BlockKey(std::as_bytes(std::span(bytes))) {}

  std::span<const std::byte> bytes() const { return {bytes_.data(), size_}; }
  std::string hex() const;

  bool operator==(const BlockKey&) const = default;

 private:
  std::array<std::byte, kMaxBytes> bytes_{};  // zeros behind size_
  std::size_t size_;
};

struct BlockStoreOptions {
  ModelShape shape;
  int block_size = 16;        // of the anchor KV-cache group
  std::size_t max_bytes = 0;  // of rows in memory, or of files
  // Which weights the rows come from, up to 256 bytes. After an update make a new store under
  // another name: rows of other weights must never be found.
  std::string weights;

  std::size_t block_bytes() const {
    return static_cast<std::size_t>(block_size) * shape.row_bytes();
  }
  // ArgumentError that names the field, its value and what is allowed: room for one block at least.
  void validate() const;
  // ArgumentError unless a block's rows take this many bytes.
  void require_block(std::size_t bytes) const;
  // Whether whole rows may all be present: with ids of the model, none twice in a layer
  // unless it is declared, and 0 before the weights.
  bool can_be_present(std::span<const std::byte> rows) const;
  // As require_block(); RangeError if a row has an id that the model does not have, ArgumentError
  // if one has an id twice in a layer, or something else than 0 between ids and weights.
  void require_rows(std::span<const std::byte> rows) const;
};

// Content-keyed and immutable: whoever stored a block first has stored it. Blocks that nobody used
// for the longest time make room for new ones; held ones never do. One thread at a time.
class BlockStore {
 public:
  virtual ~BlockStore() = default;

  virtual const BlockStoreOptions& options() const = 0;

  // Keeps a block's rows: block_bytes(), all of them present. ArgumentError for
  // another size, an id that is twice in a layer and bytes that are not 0 between ids and weights,
  // RangeError for an id that the model does not have.
  enum class Put : std::uint8_t {
    stored,
    present,  // under this key already, and stays as it was
    full,     // no room: too many blocks are held, or something that is no block has its place
  };
  virtual Put put(const BlockKey& key, std::span<const std::byte> rows) = 0;

  // Copies a block's rows out; false, with `rows` untouched, if it is not here. ArgumentError for
  // another size than block_bytes().
  [[nodiscard]] virtual bool get(const BlockKey& key, std::span<std::byte> rows) = 0;

  // Keeps a block here until release(); false if it is not. Holds add up. release() of a block that
  // is not held is a StateError.
  [[nodiscard]] virtual bool hold(const BlockKey& key) = 0;
  virtual void release(const BlockKey& key) = 0;

  // As far as this object knows.
  struct Stats {
    std::size_t blocks = 0;
    std::size_t bytes = 0;
    std::uint64_t hits = 0;
    std::uint64_t misses = 0;
    std::uint64_t evicted = 0;
    std::uint64_t refused = 0;  // misses because what was found is corrupt, short or not ours
  };
  virtual Stats stats() const = 0;
};

// In memory, which it takes as it fills and gives back at its end.
std::unique_ptr<BlockStore> make_memory_block_store(BlockStoreOptions options);

}  // namespace moetap
