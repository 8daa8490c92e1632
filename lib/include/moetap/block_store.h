// Stores the rows of full KV blocks under the engine's block hashes. So routes follow offloaded
// blocks, and a prefix hit in another process finds them.
#pragma once

#include <moetap/export.h>
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

// An engine's hash of a block's content: all tokens up to its end, and anything else that
// determines its keys and values (adapters, images). Opaque. ArgumentError unless it has 1 to 64
// bytes.
class MOETAP_API BlockKey {
 public:
  static constexpr std::size_t kMaxBytes = 64;

  explicit BlockKey(std::span<const std::byte> bytes);
  explicit BlockKey(std::string_view bytes) : BlockKey(std::as_bytes(std::span(bytes))) {}

  std::span<const std::byte> bytes() const { return {bytes_.data(), size_}; }
  std::string hex() const;

  bool operator==(const BlockKey&) const = default;

 private:
  std::array<std::byte, kMaxBytes> bytes_{};  // zeros after size_
  std::size_t size_;
};

struct MOETAP_API BlockStoreOptions {
  ModelShape shape;
  int block_size = 16;        // of the anchor KV-cache group
  std::size_t max_bytes = 0;  // of the rows in memory, or of the files
  // Identifies the weights that the rows were captured with; up to 256 bytes. After a weight update
  // make a new store with another value: rows of other weights must never be found.
  std::string model_version;

  std::size_t block_bytes() const {
    return static_cast<std::size_t>(block_size) * shape.row_bytes();
  }
  // ArgumentError that names the field, its value and what is allowed. max_bytes must have room for
  // at least one block.
  void validate() const;
  // ArgumentError unless this is block_bytes().
  void require_block(std::size_t bytes) const;
  // Whether these whole rows can all be present. They then have valid expert ids, none twice in a
  // layer unless the shape declares it, and zeros between ids and weights.
  bool can_be_present(std::span<const std::byte> rows) const;
  // As require_block(). RangeError for an id that the model does not have. ArgumentError for an id
  // that is twice in a layer, or bytes other than 0 between ids and weights.
  void require_rows(std::span<const std::byte> rows) const;
};

// Blocks are keyed by content and immutable: the first put() of a key stays. The least recently
// used blocks are evicted to make room; held blocks never are. One thread at a time.
class MOETAP_API BlockStore {
 public:
  virtual ~BlockStore() = default;

  virtual const BlockStoreOptions& options() const = 0;

  // Stores a block's rows: block_bytes() bytes, all rows present. ArgumentError for another size,
  // an id that is twice in a layer, or bytes other than 0 between ids and weights. RangeError for
  // an id that the model does not have.
  enum class Put : std::uint8_t {
    stored,
    present,  // already stored under this key; unchanged
    full,     // no room: too many blocks are held, or something else has the block's place
  };
  virtual Put put(const BlockKey& key, std::span<const std::byte> rows) = 0;

  // Copies a block's rows to `rows`. Returns false, with `rows` unchanged, if the block is not
  // stored. ArgumentError for a size other than block_bytes().
  [[nodiscard]] virtual bool get(const BlockKey& key, std::span<std::byte> rows) = 0;

  // Keeps a block from being evicted until release(). Returns false if it is not stored. A block
  // may be held several times, and needs a release() for each hold. release() of a block that is
  // not held is a StateError.
  [[nodiscard]] virtual bool hold(const BlockKey& key) = 0;
  virtual void release(const BlockKey& key) = 0;

  // Counts of this object only.
  struct Stats {
    std::size_t blocks = 0;
    std::size_t bytes = 0;
    std::uint64_t hits = 0;
    std::uint64_t misses = 0;
    std::uint64_t evicted = 0;
    std::uint64_t refused = 0;  // misses where the stored data was corrupt, short or not ours
  };
  virtual Stats stats() const = 0;
};

// A store in memory, which it allocates as it fills and frees when it is destroyed.
[[nodiscard]] MOETAP_API std::unique_ptr<BlockStore> make_memory_block_store(
    BlockStoreOptions options);

}  // namespace moetap
