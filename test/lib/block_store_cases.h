// What every block store promises, for the tests of each.
#pragma once

#include <moetap/block_store.h>
#include <moetap/error.h>

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace moetap::test {

inline BlockStoreOptions small_store(std::size_t blocks) {
  BlockStoreOptions options{.shape = ModelShape::uniform(2, 2, 256),
                            .block_size = 4,
                            .max_bytes = 0,
                            .model_version = "v1"};
  options.max_bytes = blocks * options.block_bytes();
  return options;
}

// As long as a key can be, so that all files have one length.
inline BlockKey key_of(int number) {
  std::string text = std::to_string(number);
  text.insert(0, BlockKey::kMaxBytes - text.size(), '.');
  return BlockKey(text);
}

// Rows that belong to one key only.
inline std::vector<std::byte> rows_for(const BlockStoreOptions& options, int number) {
  std::mt19937 random(static_cast<unsigned>(number));
  std::vector<std::byte> rows(options.block_bytes());
  const auto num_experts = static_cast<unsigned>(options.shape.num_experts());
  const auto top_k = static_cast<std::size_t>(options.shape.top_k());
  for (std::size_t i = 0; i < rows.size();) {
    rows[i] = static_cast<std::byte>(random() % num_experts);
    const auto layer = rows.begin() + static_cast<std::ptrdiff_t>(i / top_k * top_k);
    const auto own = rows.begin() + static_cast<std::ptrdiff_t>(i);
    if (std::find(layer, own, *own) == own) ++i;  // distinct in a layer
  }
  return rows;
}

inline BlockStore::Put put(BlockStore& store, int number) {
  return store.put(key_of(number), rows_for(store.options(), number));
}

// Whether the block is there; if so it must be the right one, if not nothing is written.
inline bool has(BlockStore& store, int number) {
  std::vector<std::byte> rows(store.options().block_bytes(), std::byte{0x5A});
  const bool found = store.get(key_of(number), rows);
  const auto wanted = found ? rows_for(store.options(), number)
                            : std::vector<std::byte>(rows.size(), std::byte{0x5A});
  EXPECT_EQ(rows, wanted) << "block " << number;
  return found;
}

// Of an empty store with room for three blocks.
inline void expect_held_blocks_stay(BlockStore& store) {
  for (const int number : {1, 2, 3}) put(store, number);
  EXPECT_TRUE(store.hold(key_of(1)));
  EXPECT_TRUE(store.hold(key_of(1)));
  EXPECT_TRUE(store.hold(key_of(2)));
  EXPECT_FALSE(store.hold(key_of(9)));
  EXPECT_EQ(put(store, 4), BlockStore::Put::stored);
  EXPECT_FALSE(has(store, 3));
  EXPECT_TRUE(store.hold(key_of(4)));
  EXPECT_EQ(put(store, 5), BlockStore::Put::full);
  EXPECT_TRUE(has(store, 1) && has(store, 2) && has(store, 4));
  store.release(key_of(1));
  EXPECT_EQ(put(store, 5), BlockStore::Put::full);  // held once more
  store.release(key_of(1));
  EXPECT_EQ(put(store, 5), BlockStore::Put::stored);
  EXPECT_FALSE(has(store, 1));
}

}  // namespace moetap::test
