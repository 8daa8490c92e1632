#include <moetap/block_store.h>
#include <moetap/error.h>

#include <fmt/format.h>

#include <cstring>
#include <functional>
#include <iterator>
#include <list>
#include <unordered_map>
#include <utility>

namespace moetap {
namespace {

struct KeyHash {
  std::size_t operator()(const BlockKey& key) const {
    const auto bytes = key.bytes();
    return std::hash<std::string_view>()(
        {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }
};

class MemoryBlockStore final : public BlockStore {
 public:
  explicit MemoryBlockStore(BlockStoreOptions options)
      : options_((options.validate(), std::move(options))),
        max_blocks_(options_.max_bytes / options_.block_bytes()) {}

  const BlockStoreOptions& options() const override { return options_; }

  Put put(const BlockKey& key, std::span<const std::byte> rows) override {
    options_.require_rows(rows);
    if (const auto found = blocks_.find(key); found != blocks_.end()) {
      touch(found->second);
      return Put::present;
    }
    const bool has_room = blocks_.size() < max_blocks_;
    if (!has_room && unheld_.empty()) return Put::full;
    if (has_room) {
      add(key);
    } else {
      replace_oldest(key);
    }
    std::memcpy(unheld_.front().rows.get(), rows.data(), rows.size());
    return Put::stored;
  }

  bool get(const BlockKey& key, std::span<std::byte> rows) override {
    options_.require_block(rows.size());
    const auto found = blocks_.find(key);
    if (found == blocks_.end()) {
      ++stats_.misses;
      return false;
    }
    ++stats_.hits;
    touch(found->second);
    std::memcpy(rows.data(), found->second->rows.get(), rows.size());
    return true;
  }

  bool hold(const BlockKey& key) override {
    const auto found = blocks_.find(key);
    if (found == blocks_.end()) return false;
    if (found->second->holds++ == 0) held_.splice(held_.begin(), unheld_, found->second);
    return true;
  }

  void release(const BlockKey& key) override {
    const auto found = blocks_.find(key);
    if (found == blocks_.end() || found->second->holds == 0) {
      throw StateError(fmt::format("release() of block {}, which is not held", key.hex()));
    }
    if (--found->second->holds == 0) unheld_.splice(unheld_.begin(), held_, found->second);
  }

  Stats stats() const override {
    Stats stats = stats_;
    stats.blocks = blocks_.size();
    stats.bytes = blocks_.size() * options_.block_bytes();
    return stats;
  }

 private:
  struct Block {
    BlockKey key;
    std::unique_ptr<std::byte[]> rows;
    std::uint64_t holds = 0;
  };
  using Blocks = std::list<Block>;  // lists, so that blocks change places without being copied
  using Index = std::unordered_map<BlockKey, Blocks::iterator, KeyHash>;

  void touch(Blocks::iterator block) {
    if (block->holds == 0) unheld_.splice(unheld_.begin(), unheld_, block);
  }

  void add(const BlockKey& key) {
    Blocks fresh;
    fresh.push_back({key, std::make_unique_for_overwrite<std::byte[]>(options_.block_bytes())});
    blocks_.emplace(key, fresh.begin());
    unheld_.splice(unheld_.begin(), fresh);
  }

  // The new block reuses its memory, list node and index node.
  void replace_oldest(const BlockKey& key) {
    const auto oldest = std::prev(unheld_.end());
    auto node = blocks_.extract(oldest->key);
    node.key() = key;
    blocks_.insert(std::move(node));
    oldest->key = key;
    touch(oldest);
    ++stats_.evicted;
  }

  BlockStoreOptions options_;
  std::size_t max_blocks_;
  Blocks unheld_;  // most recently used first
  Blocks held_;
  Index blocks_;
  Stats stats_;
};

}  // namespace

std::unique_ptr<BlockStore> make_memory_block_store(BlockStoreOptions options) {
  return std::make_unique<MemoryBlockStore>(std::move(options));
}

}  // namespace moetap
