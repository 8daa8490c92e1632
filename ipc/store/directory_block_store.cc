#include <moetap/directory_block_store.h>
#include <moetap/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "ipc/store/block_directory.h"
#include "ipc/store/block_file.h"

namespace moetap {
namespace {

class DirectoryBlockStore final : public BlockStore {
 public:
  DirectoryBlockStore(const std::filesystem::path& path, BlockStoreOptions options)
      : options_((options.validate(), std::move(options))), format_(options_), directory_(path) {
    const std::size_t file = format_.bytes(BlockKey(std::string(BlockKey::kMaxBytes, 'k')));
    if (options_.max_bytes < file) {
      throw ArgumentError(fmt::format(
          "a block directory's max_bytes is {}, less than one file, which takes up to {}",
          options_.max_bytes, file));
    }
  }

  const BlockStoreOptions& options() const override { return options_; }

  Put put(const BlockKey& key, std::span<const std::byte> rows) override {
    options_.require_rows(rows);
    if (load(key)) return Put::present;
    if (!make_room(format_.bytes(key))) return Put::full;
    format_.encode(key, rows, scratch_);
    if (!directory_.create(format_.name(key), scratch_)) {
      // Another process has just put it; or the file is unusable, but held or not ours to remove.
      return load(key) ? Put::present : Put::full;
    }
    room_ -= scratch_.size();
    return Put::stored;
  }

  bool get(const BlockKey& key, std::span<std::byte> rows) override {
    options_.require_block(rows.size());
    if (!load(key)) {
      ++stats_.misses;
      return false;
    }
    ++stats_.hits;
    const auto found = format_.rows(scratch_);
    std::memcpy(rows.data(), found.data(), found.size());
    return true;
  }

  bool hold(const BlockKey& key) override {
    maker_.require("the block store ", directory_.path().string());
    const std::string name = format_.name(key);
    if (const auto held = held_.find(name); held != held_.end()) {
      ++held->second.count;
      return true;
    }
    auto file = load(key);
    if (!file || !directory_.lock(name, *file, false)) return false;
    held_.emplace(name, Held{std::move(*file), 1});
    return true;
  }

  void release(const BlockKey& key) override {
    const auto held = held_.find(format_.name(key));
    if (held == held_.end()) {
      throw StateError(fmt::format("release() of block {}, which is not held", key.hex()));
    }
    if (--held->second.count == 0) held_.erase(held);
  }

  Stats stats() const override {
    Stats stats = stats_;
    for (const auto& entry : directory_.list()) {
      ++stats.blocks;
      stats.bytes += entry.bytes;
    }
    return stats;
  }

 private:
  struct Held {
    OpenFile file;  // its lock keeps the block
    std::uint64_t count = 0;
  };

  // The block's file, if it exists and is good; `scratch_` then has its bytes.
  std::optional<OpenFile> load(const BlockKey& key) {
    const std::string name = format_.name(key);
    auto file = directory_.open(name, stats_.refused);
    if (!file) return std::nullopt;
    scratch_ = file->read(format_.bytes(key) + 1);
    const BlockFile::Kind kind = format_.check(key, scratch_);
    if (kind == BlockFile::Kind::good) {
      file->touch();
      return file;
    }
    ++stats_.refused;
    // Removes it, so that its block can be stored again.
    if (kind == BlockFile::Kind::damaged) directory_.remove(name, *file);
    return std::nullopt;
  }

  // Other processes put files too. So it scans again after each eighth of max_bytes that this
  // process put.
  bool make_room(std::size_t bytes) {
    if (bytes <= room_) return true;
    const std::vector<BlockDirectory::Entry> entries = directory_.list();
    std::size_t total = 0;
    for (const auto& entry : entries) total += entry.bytes;
    const std::size_t wanted = std::max(bytes, options_.max_bytes / 8);
    for (const auto& entry : entries) {
      if (total + wanted <= options_.max_bytes) break;
      if (remove(entry)) total -= entry.bytes;
    }
    room_ = total < options_.max_bytes ? std::min(wanted, options_.max_bytes - total) : 0;
    return bytes <= room_;
  }

  bool remove(const BlockDirectory::Entry& entry) {
    std::uint64_t refused = 0;
    const auto file = directory_.open(entry.name, refused);
    if (!file) return refused == 0;  // gone
    const auto magic = file->read(BlockFile::kMagic.size());
    const bool ours = std::ranges::equal(magic, std::as_bytes(std::span(BlockFile::kMagic)));
    if (!ours || !directory_.remove(entry.name, *file)) return false;
    ++stats_.evicted;
    return true;
  }

  BlockStoreOptions options_;
  BlockFile format_;
  BlockDirectory directory_;
  Maker maker_;  // of the holds
  std::map<std::string, Held> held_;
  std::vector<std::byte> scratch_;
  std::size_t room_ = 0;  // bytes that may be put before the next scan
  Stats stats_;
};

}  // namespace

std::unique_ptr<BlockStore> make_directory_block_store(const std::filesystem::path& directory,
                                                       BlockStoreOptions options) {
  return std::make_unique<DirectoryBlockStore>(directory, std::move(options));
}

}  // namespace moetap
