// The scheduler's KV-cache blocks: which requests use them, and which contain a prefix that another
// request can use (block-hash prefix caching, as in vLLM).
#pragma once

#include <moetap/types.h>

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace demo {

using moetap::BlockId;

// Identifies the contents of a block and of all blocks before it.
using BlockHash = std::uint64_t;

// A block is in use (references > 0) or free. A free block keeps its contents, and can be taken
// again by its hash, until allocate() gives it to a new owner. The least recently freed block goes
// first.
class KvCache {
 public:
  KvCache(std::int64_t num_blocks, int block_size);

  std::int64_t num_blocks() const { return static_cast<std::int64_t>(blocks_.size()); }
  int block_size() const { return block_size_; }
  std::int64_t free_blocks() const { return free_; }

  // Takes the blocks of the longest cached prefix of `hashes`, adding a reference to each.
  std::vector<BlockId> take_cached(std::span<const BlockHash> hashes);

  // The hash of the block that allocate() would take, if it has one.
  std::optional<BlockHash> next_evicted() const;

  // Takes a free block for new contents. moetap::StateError if there is none.
  BlockId allocate();

  // Makes a full block of the caller available by its hash. It replaces an earlier block of the
  // same hash, which may lack rows if they were not wanted.
  void set_hash(BlockId block, BlockHash hash);

  // Drops one reference to each. Later blocks are reused first: a prefix is worth more than what
  // follows it.
  void release(std::span<const BlockId> blocks);

  int references(BlockId block) const { return at(block).references; }

 private:
  struct Block {
    int references = 0;
    bool hashed = false;
    BlockHash hash = 0;
    BlockId older = -1;  // neighbours in the list of free blocks
    BlockId newer = -1;
  };

  Block& at(BlockId block) { return blocks_.at(static_cast<std::size_t>(block.value())); }
  const Block& at(BlockId block) const {
    return blocks_.at(static_cast<std::size_t>(block.value()));
  }
  void append_free(BlockId block);
  void remove_free(BlockId block);

  int block_size_;
  std::vector<Block> blocks_;
  std::unordered_map<BlockHash, BlockId> by_hash_;
  std::int64_t free_ = 0;
  BlockId oldest_ = -1;
  BlockId newest_ = -1;
};

}  // namespace demo
