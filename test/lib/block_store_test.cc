#include <list>
#include <map>
#include <string>
#include <utility>

#include "test/lib/block_store_cases.h"
#include "test/lib/throws.h"

namespace moetap {
namespace {

using test::expect_throw;
using test::has;
using test::key_of;
using test::put;
using test::rows_for;
using test::small_store;
using Put = BlockStore::Put;

TEST(BlockKeyTest, IsItsBytes) {
  EXPECT_EQ(BlockKey("a\x01\xFF").hex(), "6101ff");
  EXPECT_EQ(BlockKey("abc"), BlockKey("abc"));
  EXPECT_NE(BlockKey("abc"), BlockKey("abd"));
  EXPECT_NE(BlockKey("abc"), BlockKey(std::string_view("abc\0", 4)));
  EXPECT_EQ(BlockKey(std::string(64, 'x')).bytes().size(), 64u);
  expect_throw<ArgumentError>([] { BlockKey(""); }, {"0 bytes", "1 to 64"});
  expect_throw<ArgumentError>([] { BlockKey(std::string(65, 'x')); }, {"65 bytes"});
}

TEST(BlockStoreOptionsTest, MustHaveRoomForABlock) {
  auto options = small_store(1);
  EXPECT_NO_THROW(options.validate());
  options.max_bytes -= 1;
  expect_throw<ArgumentError>([&] { (void)make_memory_block_store(options); },
                              {"max_bytes", "15", "16"});
  options = small_store(1);
  options.block_size = 0;
  expect_throw<ArgumentError>([&] { options.validate(); }, {"block_size is 0"});
  options = small_store(1);
  options.model_version.assign(257, 'w');
  expect_throw<ArgumentError>([&] { options.validate(); }, {"257", "256"});
}

class MemoryBlockStoreTest : public testing::Test {
 protected:
  std::unique_ptr<BlockStore> store = make_memory_block_store(small_store(3));
};

TEST_F(MemoryBlockStoreTest, ReturnsWhatWasPut) {
  EXPECT_FALSE(has(*store, 1));
  EXPECT_EQ(put(*store, 1), Put::stored);
  EXPECT_EQ(put(*store, 2), Put::stored);
  EXPECT_TRUE(has(*store, 1) && has(*store, 2));
  EXPECT_FALSE(has(*store, 3));
  EXPECT_EQ(store->stats().hits, 2u);
  EXPECT_EQ(store->stats().misses, 2u);
  EXPECT_EQ(store->stats().bytes, 2 * store->options().block_bytes());
}

TEST_F(MemoryBlockStoreTest, RefusesIdsThatTheModelDoesNotHave) {  // H20
  BlockStoreOptions options = small_store(3);
  for (const auto& [experts, id] :
       {std::pair{8, 200}, {8, 8}, {255, 255}, {300, 300}, {300, 65535}}) {
    options.shape = ModelShape::uniform(2, 2, experts);
    options.max_bytes = 3 * options.block_bytes();
    store = make_memory_block_store(options);
    std::vector<std::byte> rows = rows_for(options, 1);
    if (experts > 256) {
      for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = std::byte{i % 4 == 0};
    }
    const std::size_t size = experts > 256 ? 2 : 1;
    const auto set_last = [&rows, size](int number) {
      const auto wide = static_cast<std::uint16_t>(number);
      std::memcpy(rows.data() + rows.size() - size, &wide, size);
    };
    set_last(id);
    expect_throw<RangeError>([&] { store->put(key_of(1), rows); },
                             {"expert id " + std::to_string(id), std::to_string(experts)});
    EXPECT_EQ(store->stats().blocks, 0u);
    set_last(experts - 1);
    EXPECT_EQ(store->put(key_of(1), rows), Put::stored);
  }
}

TEST_F(MemoryBlockStoreTest, RefusesAnExpertThatIsPickedTwice) {  // H32
  for (const int experts : {8, 300}) {                            // uint8, uint16
    for (const bool declared : {false, true}) {
      BlockStoreOptions options = small_store(3);
      options.shape = ModelShape({1, 4}, 2, experts).with_repeated_experts(declared);
      options.max_bytes = 3 * options.block_bytes();
      store = make_memory_block_store(options);
      const std::vector<std::byte> rows(options.block_bytes());  // memory that was not written
      if (declared) {
        EXPECT_EQ(store->put(key_of(1), rows), Put::stored);
        continue;
      }
      expect_throw<ArgumentError>(
          [&] { store->put(key_of(1), rows); },
          {"row 0", "layer 1", "expert id 0 is picked twice", "with_repeated_experts"});
      EXPECT_EQ(store->stats().blocks, 0u);
      EXPECT_FALSE(options.can_be_present(rows));
    }
  }
}

TEST_F(MemoryBlockStoreTest, TheFirstRowsOfAKeyStay) {
  put(*store, 1);
  EXPECT_EQ(store->put(key_of(1), rows_for(store->options(), 2)), Put::present);
  EXPECT_TRUE(has(*store, 1));
}

TEST_F(MemoryBlockStoreTest, TheLeastRecentlyUsedMakesRoom) {
  for (const int number : {1, 2, 3}) put(*store, number);
  EXPECT_TRUE(has(*store, 1));              // used
  EXPECT_EQ(put(*store, 2), Put::present);  // used
  EXPECT_EQ(put(*store, 4), Put::stored);
  EXPECT_FALSE(has(*store, 3));
  EXPECT_TRUE(has(*store, 1) && has(*store, 2) && has(*store, 4));
  EXPECT_EQ(store->stats().evicted, 1u);
  EXPECT_EQ(store->stats().blocks, 3u);
}

TEST_F(MemoryBlockStoreTest, HeldBlocksStay) { test::expect_held_blocks_stay(*store); }

TEST_F(MemoryBlockStoreTest, OnlyHeldBlocksAreReleased) {
  put(*store, 1);
  expect_throw<StateError>([&] { store->release(key_of(1)); }, {key_of(1).hex(), "not held"});
  expect_throw<StateError>([&] { store->release(key_of(2)); }, {key_of(2).hex()});
}

TEST_F(MemoryBlockStoreTest, RefusesOtherSizes) {
  std::vector<std::byte> rows(store->options().block_bytes() + 1);
  expect_throw<ArgumentError>([&] { store->put(key_of(1), rows); }, {"17", "16"});
  put(*store, 1);
  expect_throw<ArgumentError>([&] { (void)store->get(key_of(1), rows); }, {"17", "16"});
  EXPECT_TRUE(has(*store, 1));
}

// Against a model: a list of keys in order of use.
TEST(MemoryBlockStoreRandom, AgreesWithAModel) {
  std::mt19937 random(1);
  const auto store = make_memory_block_store(small_store(8));
  std::list<int> used;  // the latest first
  std::map<int, int> holds;
  const auto touch = [&](int number) {
    used.remove(number);
    used.push_front(number);
  };
  const auto in = [&](int number) {
    return std::find(used.begin(), used.end(), number) != used.end();
  };
  for (int i = 0; i < 20'000; ++i) {
    const int number = static_cast<int>(random() % 24);
    switch (random() % 4) {
      case 0: {
        const auto oldest =
            std::find_if(used.rbegin(), used.rend(), [&](int n) { return holds[n] == 0; });
        const Put expected = in(number)              ? Put::present
                             : used.size() < 8       ? Put::stored
                             : oldest == used.rend() ? Put::full
                                                     : Put::stored;
        ASSERT_EQ(put(*store, number), expected);
        if (expected == Put::stored && used.size() == 8) used.remove(int{*oldest});
        if (expected != Put::full) touch(number);
        break;
      }
      case 1:
        ASSERT_EQ(has(*store, number), in(number));
        if (in(number)) touch(number);
        break;
      case 2:
        if (random() % 3 != 0) break;
        ASSERT_EQ(store->hold(key_of(number)), in(number));
        if (in(number)) ++holds[number];
        break;
      case 3:
        if (holds[number] == 0) break;
        store->release(key_of(number));
        if (--holds[number] == 0) touch(number);
        break;
    }
    ASSERT_EQ(store->stats().blocks, used.size());
  }
  EXPECT_GT(store->stats().evicted, 1000u);
}

}  // namespace
}  // namespace moetap
