#include "examples/simulator/kv_cache.h"

#include <moetap/error.h>

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <random>
#include <vector>

namespace demo {
namespace {

using Blocks = std::vector<BlockId>;
using Hashes = std::vector<BlockHash>;

TEST(KvCache, CountsWhatIsFree) {
  KvCache cache(3, 16);
  EXPECT_EQ(cache.free_blocks(), 3);
  const Blocks blocks{cache.allocate(), cache.allocate(), cache.allocate()};
  EXPECT_EQ(cache.free_blocks(), 0);
  EXPECT_THROW(cache.allocate(), moetap::StateError);
  cache.release(blocks);
  EXPECT_EQ(cache.free_blocks(), 3);
  EXPECT_THROW(cache.release(blocks), moetap::StateError);
  EXPECT_THROW(KvCache(0, 16), moetap::ArgumentError);
  EXPECT_THROW(KvCache(1, 0), moetap::ArgumentError);
}

TEST(KvCache, SharesABlockByItsHashAndKeepsItUntilTheLastUserGivesItUp) {
  KvCache cache(2, 16);
  const Blocks own{cache.allocate()};
  cache.set_hash(own[0], 77);
  const Blocks hit = cache.take_cached(Hashes{77, 78});
  EXPECT_EQ(hit, own);
  EXPECT_EQ(cache.references(own[0]), 2);
  cache.release(own);
  EXPECT_EQ(cache.free_blocks(), 1);
  const BlockId other = cache.allocate();
  EXPECT_NE(other, own[0]);
  cache.release(hit);
  EXPECT_EQ(cache.free_blocks(), 1);
}

TEST(KvCache, AFreeBlockIsFoundByItsHashUntilItGetsANewOwner) {
  KvCache cache(1, 16);
  const Blocks own{cache.allocate()};
  cache.set_hash(own[0], 77);
  cache.release(own);
  EXPECT_EQ(cache.take_cached(Hashes{77}), own);
  cache.release(own);
  EXPECT_EQ(cache.allocate(), own[0]);
  EXPECT_TRUE(cache.take_cached(Hashes{77}).empty());
}

TEST(KvCache, KnowsWhichHashTheNextOwnerOfABlockTakesAway) {
  KvCache cache(2, 16);
  EXPECT_EQ(cache.next_evicted(), std::nullopt);
  const Blocks own{cache.allocate(), cache.allocate()};
  EXPECT_EQ(cache.next_evicted(), std::nullopt);
  cache.set_hash(own[0], 77);
  cache.release(own);
  EXPECT_EQ(cache.next_evicted(), std::nullopt);
  EXPECT_EQ(cache.allocate(), own[1]);
  EXPECT_EQ(cache.next_evicted(), 77U);
  EXPECT_EQ(cache.allocate(), own[0]);
  EXPECT_EQ(cache.next_evicted(), std::nullopt);
}

TEST(KvCache, TakesOnlyAPrefix) {
  KvCache cache(3, 16);
  const Blocks own{cache.allocate(), cache.allocate()};
  cache.set_hash(own[0], 1);
  cache.set_hash(own[1], 3);
  EXPECT_EQ(cache.take_cached(Hashes{1, 2, 3}), Blocks{own[0]});
}

TEST(KvCache, ReusesTheLeastRecentlyFreedAndOfARequestItsEndFirst) {
  KvCache cache(4, 16);
  const Blocks a{cache.allocate(), cache.allocate()};
  const Blocks b{cache.allocate(), cache.allocate()};
  cache.release(b);
  cache.release(a);
  EXPECT_EQ(cache.allocate(), b[1]);
  EXPECT_EQ(cache.allocate(), b[0]);
  EXPECT_EQ(cache.allocate(), a[1]);
  EXPECT_EQ(cache.allocate(), a[0]);
}

TEST(KvCache, GivesAHashOnlyToABlockInUseAndOnlyOnce) {
  KvCache cache(2, 16);
  const Blocks own{cache.allocate()};
  cache.set_hash(own[0], 7);
  EXPECT_THROW(cache.set_hash(own[0], 8), moetap::StateError);
  EXPECT_THROW(cache.set_hash(BlockId(1 - own[0].value()), 8), moetap::StateError);
}

// The earlier block may lack rows that are wanted.
TEST(KvCache, TheLatestBlockOfAHashIsFoundAndTheEarlierOneIsForgotten) {
  KvCache cache(3, 16);
  const Blocks old{cache.allocate()};
  cache.set_hash(old[0], 7);
  const Blocks twin{cache.allocate()};
  cache.set_hash(twin[0], 7);
  EXPECT_EQ(cache.take_cached(Hashes{7}), twin);
  cache.release(old);
  cache.release(twin);
  cache.release(twin);
  // Its next owner's end does not take the hash away either.
  const Blocks next{cache.allocate(), cache.allocate()};
  EXPECT_EQ(next[1], old[0]);
  EXPECT_EQ(cache.take_cached(Hashes{7}), twin);
}

// Against a model that only knows who holds what: nothing in use is ever given away.
TEST(KvCache, NeverGivesAwayABlockInUse) {
  std::mt19937_64 random(7);
  KvCache cache(24, 16);
  std::vector<Blocks> holders;
  std::map<BlockId, int> references;
  std::map<BlockId, BlockHash> contents;  // of hashed blocks
  BlockHash next = 1;
  for (int i = 1; i < 20'000; ++i) {
    if (!holders.empty() && random() % 3 == 0) {
      const std::size_t holder = random() % holders.size();
      cache.release(holders[holder]);
      for (const BlockId block : holders[holder]) --references[block];
      holders.erase(holders.begin() + static_cast<std::ptrdiff_t>(holder));
    } else if (next > 1 && random() % 2 == 0) {
      const BlockHash hash = 1 + random() % (next - 1);
      const Blocks hit = cache.take_cached(Hashes{hash});
      for (const BlockId block : hit) {
        EXPECT_EQ(contents.at(block), hash);
        ++references[block];
      }
      if (!hit.empty()) holders.push_back(hit);
    } else if (cache.free_blocks() > 0) {
      const BlockId block = cache.allocate();
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
