#include "test/ipc/directory_block_store_test.h"

#include <moetap/directory_block_store.h>
#include <moetap/offload.h>
#include <moetap/read_rows.h>

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "ipc/store/block_directory.h"
#include "test/ipc/child_process.h"
#include "test/lib/block_store_cases.h"
#include "test/lib/slot_memory.h"
#include "test/lib/throws.h"

namespace moetap {
namespace {

namespace fs = std::filesystem;

using test::ChildProcess;
using test::DirectoryBlockStoreTest;
using test::expect_throw;
using test::has;
using test::key_of;
using test::put;
using test::rows_for;
using test::Signal;
using Put = BlockStore::Put;

TEST_F(DirectoryBlockStoreTest, ReturnsWhatWasPut) {
  const auto store = open();
  EXPECT_FALSE(has(*store, 1));
  EXPECT_EQ(put(*store, 1), Put::stored);
  EXPECT_EQ(put(*store, 2), Put::stored);
  EXPECT_TRUE(has(*store, 1) && has(*store, 2));
  EXPECT_FALSE(has(*store, 3));
  EXPECT_EQ(store->stats().hits, 2u);
  EXPECT_EQ(store->stats().misses, 2u);
  EXPECT_EQ(store->stats().refused, 0u);
  EXPECT_EQ(store->stats().blocks, 2u);
  EXPECT_EQ(store->stats().bytes, 2 * kFileBytes);
  EXPECT_EQ(contents(files()[0]).size(), kFileBytes);
}

TEST_F(DirectoryBlockStoreTest, AnotherProcessFindsIt) {
  ChildProcess worker([&] { EXPECT_EQ(put(*open(), 1), Put::stored); });
  ASSERT_EQ(worker.join(), 0);
  EXPECT_TRUE(has(*open(), 1));
}

// Two stores of a process, or two processes of one pid in two containers, write at the same time.
TEST_F(DirectoryBlockStoreTest, StoresThatPutAtTheSameTimeDoNotTakeEachOthersFiles) {
  constexpr int kBlocks = 400;
  const auto put_all = [this](int first) {
    const auto store = open(1000);
    for (int i = 0; i < kBlocks; ++i) EXPECT_EQ(put(*store, first + i), Put::stored);
  };
  std::thread other([&] { put_all(kBlocks); });
  put_all(0);
  other.join();
  const auto store = open(1000);
  for (int i = 0; i < 2 * kBlocks; ++i) EXPECT_TRUE(has(*store, i)) << "block " << i;
  EXPECT_EQ(store->stats().refused, 0u);
  EXPECT_EQ(files().size(), 2u * kBlocks);
}

// Its writer may have died, or not have come so far, between giving the file its name and taking
// the temporary one away.
TEST_F(DirectoryBlockStoreTest, AFileThatWasRemovedIsNotHeldByASecondNameOfIts) {
  put(*open(), 1);
  const fs::path file = only_file();
  BlockDirectory directory(path);
  std::uint64_t refused = 0;
  const auto found = directory.open(file.filename(), refused);
  ASSERT_TRUE(found);
  fs::create_hard_link(file, path / ".unfinished-1-1");
  EXPECT_TRUE(directory.lock(file.filename(), *found, /*exclusive=*/false));
  fs::remove(file);  // by another process, between the look and the lock
  EXPECT_FALSE(directory.lock(file.filename(), *found, /*exclusive=*/false));
  put(*open(), 1);  // there again, but not that file
  EXPECT_FALSE(directory.lock(file.filename(), *found, /*exclusive=*/true));
  EXPECT_FALSE(directory.remove(file.filename(), *found));
  EXPECT_TRUE(has(*open(), 1));
}

TEST_F(DirectoryBlockStoreTest, AFileThatCannotBeOpenedStillTakesItsRoom) {
  if (geteuid() == 0) GTEST_SKIP() << "root opens every file";
  put(*open(), 1);
  ASSERT_EQ(chmod(only_file().c_str(), 0), 0);
  EXPECT_EQ(put(*open(1), 2), Put::full);
  EXPECT_EQ(files().size(), 1u);
}

TEST_F(DirectoryBlockStoreTest, TheFirstRowsOfAKeyStay) {
  const auto store = open();
  put(*store, 1);
  EXPECT_EQ(store->put(key_of(1), rows_for(store->options(), 2)), Put::present);
  EXPECT_TRUE(has(*store, 1));
}

TEST_F(DirectoryBlockStoreTest, OnlyItsUserMayReadIt) {
  put(*open(), 1);
  EXPECT_EQ(fs::status(only_file()).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_all);
}

// One engine computes a prefix, another loads its KV blocks from where both keep them.
TEST_F(DirectoryBlockStoreTest, APrefixHitInAnotherProcessFindsItsRows) {  // H9
  const std::vector<BlockId> blocks{1, 2};
  const std::vector<BlockKey> keys{key_of(1), key_of(2)};
  const Milliseconds now(0);
  BlockStoreOptions numbers = options(100);
  numbers.shape = test::number_shape();
  ChildProcess other([&] {
    Ledger ledger(4, 4);
    auto* memory = new test::SlotMemory(ledger.num_slots());
    Reader reader{std::unique_ptr<SlotReadTransport>(memory)};
    const auto store = make_directory_block_store(path, numbers);
    ledger.admit({.request = 1, .num_tokens = 8, .placement = {blocks, 0}});
    ledger.schedule(1, 1, {0, 8});
    std::vector<std::pair<Slot, std::uint32_t>> rows;
    for (Slot slot = 4; slot < 12; ++slot) rows.emplace_back(slot, 1000u + slot.value());
    memory->publish(1, rows);
    EXPECT_TRUE(store_block(*store, keys[0], ledger, reader, 1, now));
    EXPECT_TRUE(store_block(*store, keys[1], ledger, reader, 2, now));
  });
  ASSERT_EQ(other.join(), 0);
  Ledger ledger(4, 4);
  Reader reader(std::make_unique<test::SlotMemory>(ledger.num_slots()));
  ledger.admit({.request = 1, .num_tokens = 9, .placement = {std::vector<BlockId>{3, 0, 1}, 0}});
  EXPECT_EQ(
      load_blocks(*make_directory_block_store(path, numbers), keys, ledger, reader, 1, 1, 0, now),
      2);
  const Routes routes = read_rows(reader, ledger.finish(1, 9), now);
  routes.require_present();
  for (std::int64_t p = 0; p < 8; ++p) EXPECT_EQ(test::number_at(routes, p), 1004u + p);
}

// --- how much there is
// ----------------------------------------------------------------------------

TEST_F(DirectoryBlockStoreTest, TheLeastRecentlyUsedMakesRoom) {
  const auto store = open(3);
  for (const int number : {1, 2, 3}) put(*store, number);
  EXPECT_TRUE(has(*store, 1));              // used
  EXPECT_EQ(put(*store, 2), Put::present);  // used
  EXPECT_EQ(put(*store, 4), Put::stored);
  EXPECT_FALSE(has(*store, 3));
  EXPECT_TRUE(has(*store, 1) && has(*store, 2) && has(*store, 4));
  EXPECT_EQ(store->stats().evicted, 1u);
}

TEST_F(DirectoryBlockStoreTest, StaysWithinItsBytesWhoeverPutTheFiles) {
  put(*open(), 1);
  put(*open(), 2);
  const auto store = open(3);
  for (int number = 3; number < 50; ++number) {
    EXPECT_EQ(put(*store, number), Put::stored);
    EXPECT_LE(store->stats().bytes, 3 * kFileBytes);
    EXPECT_TRUE(has(*store, number));
  }
}

TEST_F(DirectoryBlockStoreTest, LooksAgainAfterEachEighthOfItsBytes) {
  const auto one = open(16);
  const auto other = open(16);
  for (int i = 0; i < 200; ++i) {
    put(i % 2 == 0 ? *one : *other, i);
    EXPECT_LE(one->stats().blocks, 16u + 2u);
  }
}

TEST_F(DirectoryBlockStoreTest, HeldBlocksStay) {
  const auto store = open(3);
  test::expect_held_blocks_stay(*store);
  expect_throw<StateError>([&] { store->release(key_of(1)); }, {key_of(1).hex(), "not held"});
}

TEST_F(DirectoryBlockStoreTest, WhatAnotherProcessHoldsStaysUntilItDies) {
  put(*open(), 1);
  Signal held;
  ChildProcess worker([&] {
    const auto store = open();
    EXPECT_TRUE(store->hold(key_of(1)));
    held.raise();
    pause();
  });
  held.wait();
  const auto store = open(2);
  put(*store, 2);
  EXPECT_EQ(put(*store, 3), Put::stored);
  EXPECT_TRUE(has(*store, 1));
  EXPECT_FALSE(has(*store, 2));
  worker.kill();
  has(*store, 3);  // used later than 1
  EXPECT_EQ(put(*store, 4), Put::stored);
  EXPECT_TRUE(has(*store, 3));
  EXPECT_FALSE(has(*store, 1));
}

// --- what it refuses
// ------------------------------------------------------------------------------

TEST_F(DirectoryBlockStoreTest, RefusesOtherSizes) {
  const auto store = open();
  std::vector<std::byte> rows(store->options().block_bytes() - 1);
  expect_throw<ArgumentError>([&] { store->put(key_of(1), rows); }, {"15", "16"});
  expect_throw<ArgumentError>([&] { (void)store->get(key_of(1), rows); }, {"15", "16"});
}

TEST_F(DirectoryBlockStoreTest, NeedsRoomForAFile) {
  BlockStoreOptions small = options(1);
  small.max_bytes = kFileBytes - 1;
  expect_throw<ArgumentError>([&] { (void)make_directory_block_store(path, small); },
                              {std::to_string(kFileBytes)});
  small.max_bytes = kFileBytes;
  (void)make_directory_block_store(path, small);
}

TEST_F(DirectoryBlockStoreTest, NeedsADirectoryOfItsOwn) {
  fs::create_directory(path);
  fs::permissions(path, fs::perms::others_write, fs::perm_options::add);
  expect_throw<MismatchError>([&] { open(); }, {path.string(), "chmod go-w"});
  fs::remove(path);
  write(path, "a file");
  expect_throw<SystemError>([&] { open(); }, {path.string()});
  path = parent / "not" / "there";
  expect_throw<SystemError>([&] { open(); }, {path.string()});
}

// --- several at once
// ------------------------------------------------------------------------------

TEST_F(DirectoryBlockStoreTest, ProcessesPutAndGetAtOnce) {
  const auto work = [&](unsigned seed) {
    std::mt19937 random(seed);
    const auto store = open(12);
    int found = 0;
    for (int i = 0; i < 2000; ++i) {
      const int number = static_cast<int>(random() % 24);
      put(*store, number);
      if (has(*store, static_cast<int>(random() % 24))) ++found;
      if (random() % 8 == 0 && store->hold(key_of(number))) {
        EXPECT_TRUE(has(*store, number));
        store->release(key_of(number));
      }
    }
    EXPECT_GT(found, 100);
    EXPECT_EQ(store->stats().refused, 0u);
  };
  ChildProcess one([&] { work(1); });
  ChildProcess two([&] { work(2); });
  EXPECT_EQ(one.join(), 0);
  EXPECT_EQ(two.join(), 0);
}

}  // namespace
}  // namespace moetap
