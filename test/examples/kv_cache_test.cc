#include "kv_cache.h"

#include <moetap/error.h>

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

namespace demo {
namespace {

using Blocks = std::vector<BlockId>;
using Hashes = std::vector<BlockHash>;

TEST(KvCache, CountsWhatIsFree) {
  KvCache cache(3, 16);
  EXPECT_EQ(cache.free_blocks(), 3);
  const Blocks blocks{cache.allocate(1), cache.allocate(1), cache.allocate(2)};
  EXPECT_EQ(cache.free_blocks(), 0);
  EXPECT_THROW(cache.allocate(2), moetap::StateError);
  cache.release(blocks);
  EXPECT_EQ(cache.free_blocks(), 3);
  EXPECT_THROW(cache.release(blocks), moetap::StateError);
  EXPECT_THROW(KvCache(0, 16), moetap::ArgumentError);
  EXPECT_THROW(KvCache(1, 0), moetap::ArgumentError);
}

TEST(KvCache, SharesABlockByItsHashAndKeepsItUntilTheLastUserGivesItUp) {
  KvCache cache(2, 16);
  const Blocks own{cache.allocate(5)};
  cache.set_hash(own[0], 77);
  const Blocks hit = cache.take_cached(Hashes{77, 78});
  EXPECT_EQ(hit, own);
  EXPECT_EQ(cache.references(own[0]), 2);
  EXPECT_EQ(cache.first_step(own[0]), 5U);
  cache.release(own);
  EXPECT_EQ(cache.free_blocks(), 1);
  const BlockId other = cache.allocate(6);
  EXPECT_NE(other, own[0]);
  cache.release(hit);
  EXPECT_EQ(cache.free_blocks(), 1);
}

TEST(KvCache, AFreeBlockIsFoundByItsHashUntilItGetsANewOwner) {
  KvCache cache(1, 16);
  const Blocks own{cache.allocate(1)};
  cache.set_hash(own[0], 77);
  cache.release(own);
  EXPECT_EQ(cache.take_cached(Hashes{77}), own);
  EXPECT_EQ(cache.first_step(own[0]), 1U);
  cache.release(own);
  EXPECT_EQ(cache.allocate(9), own[0]);
  EXPECT_EQ(cache.first_step(own[0]), 9U);
  EXPECT_TRUE(cache.take_cached(Hashes{77}).empty());
}

TEST(KvCache, TakesOnlyAPrefix) {
  KvCache cache(3, 16);
  const Blocks own{cache.allocate(1), cache.allocate(1)};
  cache.set_hash(own[0], 1);
  cache.set_hash(own[1], 3);
  EXPECT_EQ(cache.take_cached(Hashes{1, 2, 3}), Blocks{own[0]});
}

TEST(KvCache, ReusesTheLeastRecentlyFreedAndOfARequestItsEndFirst) {
  KvCache cache(4, 16);
  const Blocks a{cache.allocate(1), cache.allocate(1)};
  const Blocks b{cache.allocate(1), cache.allocate(1)};
  cache.release(b);
  cache.release(a);
  EXPECT_EQ(cache.allocate(2), b[1]);
  EXPECT_EQ(cache.allocate(2), b[0]);
  EXPECT_EQ(cache.allocate(2), a[1]);
  EXPECT_EQ(cache.allocate(2), a[0]);
}

TEST(KvCache, GivesAHashOnlyToABlockInUseAndOnlyOnce) {
  KvCache cache(2, 16);
  const Blocks own{cache.allocate(1)};
  cache.set_hash(own[0], 7);
  EXPECT_THROW(cache.set_hash(own[0], 8), moetap::StateError);
  EXPECT_THROW(cache.set_hash(1 - own[0], 8), moetap::StateError);
  // A second block with the same contents stays unknown, and its end does not take the first away.
  const Blocks twin{cache.allocate(1)};
  cache.set_hash(twin[0], 7);
  cache.release(twin);
  EXPECT_EQ(cache.allocate(2), twin[0]);
  EXPECT_EQ(cache.take_cached(Hashes{7}), own);
}

// Against a model that only knows who holds what: nothing in use is ever given away.
TEST(KvCache, NeverGivesAwayABlockInUse) {
  std::mt19937_64 random(7);
  KvCache cache(24, 16);
  std::vector<Blocks> holders;
  std::map<BlockId, int> references;
  std::map<BlockId, BlockHash> contents;  // of hashed blocks
  BlockHash next = 1;
  for (Step step = 1; step < 20'000; ++step) {
    if (!holders.empty() && random() % 3 == 0) {
      const std::size_t i = random() % holders.size();
      cache.release(holders[i]);
      for (const BlockId block : holders[i]) --references[block];
      holders.erase(holders.begin() + static_cast<std::ptrdiff_t>(i));
    } else if (next > 1 && random() % 2 == 0) {
      const BlockHash hash = 1 + random() % (next - 1);
      const Blocks hit = cache.take_cached(Hashes{hash});
      for (const BlockId block : hit) {
        EXPECT_EQ(contents.at(block), hash);
        ++references[block];
      }
      if (!hit.empty()) holders.push_back(hit);
    } else if (cache.free_blocks() > 0) {
      const BlockId block = cache.allocate(step);
      ASSERT_EQ(references[block]++, 0);
      contents[block] = next;
      cache.set_hash(block, next++);
      holders.push_back({block});
    }
    std::int64_t used = 0;
    for (const auto& [block, count] : references) {
      ASSERT_EQ(cache.references(block), count);
      used += count > 0 ? 1 : 0;
    }
    ASSERT_EQ(cache.free_blocks(), cache.num_blocks() - used);
  }
}

}  // namespace
}  // namespace demo
