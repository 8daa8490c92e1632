#include "examples/simulator/kv_cache.h"

#include <moetap/error.h>

#include <fmt/format.h>

#include <utility>

#include "lib/internal/number_format.h"

namespace demo {

KvCache::KvCache(std::int64_t num_blocks, int block_size) : block_size_(block_size) {
  if (num_blocks < 1 || block_size < 1) {
    throw moetap::ArgumentError(fmt::format(
        "a KV cache of {} blocks of {} tokens; both must be at least 1", num_blocks, block_size));
  }
  blocks_.resize(static_cast<std::size_t>(num_blocks));
  for (std::int64_t block = 0; block < num_blocks; ++block) append_free(BlockId(block));
}

std::vector<BlockId> KvCache::take_cached(std::span<const BlockHash> hashes) {
  std::vector<BlockId> taken;
  for (const BlockHash hash : hashes) {
    const auto found = by_hash_.find(hash);
    if (found == by_hash_.end()) break;
    if (at(found->second).references++ == 0) remove_free(found->second);
    taken.push_back(found->second);
  }
  return taken;
}

std::optional<BlockHash> KvCache::next_evicted() const {
  if (oldest_ < 0 || !at(oldest_).hashed) return std::nullopt;
  return at(oldest_).hash;
}

BlockId KvCache::allocate() {
  if (oldest_ < 0) {
    throw moetap::StateError(fmt::format("all {} KV blocks are in use", num_blocks()));
  }
  const BlockId block = oldest_;
  remove_free(block);
  Block& b = at(block);
  if (b.hashed) by_hash_.erase(b.hash);
  b.hashed = false;
  b.references = 1;
  return block;
}

void KvCache::set_hash(BlockId block, BlockHash hash) {
  Block& b = at(block);
  if (b.references == 0 || b.hashed) {
    throw moetap::StateError(fmt::format("KV block {} {}, so it cannot be given a hash", block,
                                         b.hashed ? "has one" : "is free"));
  }
  const auto [found, added] = by_hash_.emplace(hash, block);
  if (!added) at(std::exchange(found->second, block)).hashed = false;
  b.hashed = true;
  b.hash = hash;
}

void KvCache::release(std::span<const BlockId> blocks) {
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
    if (at(*block).references == 0) {
      throw moetap::StateError(fmt::format("KV block {} is free already", *block));
    }
    if (--at(*block).references == 0) append_free(*block);
  }
}

void KvCache::append_free(BlockId block) {
  Block& b = at(block);
  b.older = newest_;
  b.newer = -1;
  (newest_ < 0 ? oldest_ : at(newest_).newer) = block;
  newest_ = block;
  ++free_;
}

void KvCache::remove_free(BlockId block) {
  Block& b = at(block);
  (b.older < 0 ? oldest_ : at(b.older).newer) = b.newer;
  (b.newer < 0 ? newest_ : at(b.newer).older) = b.older;
  --free_;
}

}  // namespace demo
