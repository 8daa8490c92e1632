// Files in a store's directory that are no blocks, or no longer whole.
#include <moetap/directory_block_store.h>

#include <boost/crc.hpp>
#include <unistd.h>

#include <filesystem>

#include "ipc/store/block_file.h"
#include "test/ipc/directory_block_store_test.h"
#include "test/lib/block_store_cases.h"
#include "test/lib/throws.h"

namespace moetap {
namespace {

namespace fs = std::filesystem;

using test::expect_throw;
using test::has;
using test::key_of;
using test::put;
using Put = BlockStore::Put;

class DirectoryBlockDamage : public test::DirectoryBlockStoreTest {};

TEST_F(DirectoryBlockDamage, AChangedByteIsNeverData) {
  const auto store = open();
  put(*store, 1);
  const fs::path file = only_file();
  const std::string good = contents(file);
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    write(file, bad);
    EXPECT_FALSE(has(*store, 1)) << "byte " << i;
    EXPECT_FALSE(store->hold(key_of(1))) << "byte " << i;
  }
  EXPECT_EQ(store->stats().refused, good.size() + 12);  // foreign ones stay, and are found twice
}

TEST_F(DirectoryBlockDamage, AFileOfAnotherLengthIsNeverData) {
  const auto store = open();
  put(*store, 1);
  const fs::path file = only_file();
  const std::string good = contents(file);
  for (std::size_t size = 0; size < good.size(); ++size) {
    write(file, good.substr(0, size));
    EXPECT_FALSE(has(*store, 1)) << size << " bytes";
  }
  write(file, good + 'x');
  EXPECT_FALSE(has(*store, 1));
}

// Whole and of this shape, but no store takes such rows.
TEST_F(DirectoryBlockDamage, AnIdThatTheModelDoesNotHaveIsNeverData) {  // H20
  BlockStoreOptions eight = options(100);
  eight.shape = ModelShape::uniform(2, 2, 8);
  const auto store = make_directory_block_store(path, eight);
  std::vector<std::byte> rows(eight.block_bytes(), std::byte{7});
  for (std::size_t i = 0; i < rows.size(); i += 2) rows[i] = std::byte{3};
  EXPECT_EQ(store->put(key_of(1), rows), Put::stored);
  rows.back() = std::byte{200};
  expect_throw<RangeError>([&] { store->put(key_of(2), rows); }, {"expert id 200", "8 experts"});
  EXPECT_EQ(files().size(), 1u);

  std::vector<std::byte> file;
  BlockFile(eight).encode(key_of(1), rows, file);
  write(only_file(), {reinterpret_cast<const char*>(file.data()), file.size()});
  EXPECT_FALSE(store->get(key_of(1), rows));
  EXPECT_EQ(store->stats().refused, 1u);
  rows.back() = std::byte{7};
  EXPECT_EQ(store->put(key_of(1), rows), Put::stored);
  EXPECT_TRUE(store->get(key_of(1), rows));
}

TEST_F(DirectoryBlockDamage, AnExpertThatIsPickedTwiceIsNeverData) {  // H32
  const auto store = open();
  EXPECT_EQ(put(*store, 1), Put::stored);
  std::vector<std::byte> rows(options(100).block_bytes());
  expect_throw<ArgumentError>([&] { store->put(key_of(2), rows); }, {"picked twice"});
  std::vector<std::byte> file;
  BlockFile(options(100)).encode(key_of(1), rows, file);
  write(only_file(), {reinterpret_cast<const char*>(file.data()), file.size()});
  EXPECT_FALSE(store->get(key_of(1), rows));
  EXPECT_EQ(store->stats().refused, 1u);
}

TEST_F(DirectoryBlockDamage, BytesBetweenIdsAndWeightsAreNeverData) {
  BlockStoreOptions weighed = options(100);
  weighed.shape = ModelShape::uniform(1, 3, 8).with_weights(WeightType::float32);
  weighed.max_bytes = 100 * weighed.block_bytes();
  const auto store = make_directory_block_store(path, weighed);
  std::vector<std::byte> rows(weighed.block_bytes());
  for (std::size_t row = 0; row < rows.size(); row += weighed.shape.row_bytes()) {
    for (std::size_t k = 0; k < 3; ++k) rows[row + k] = static_cast<std::byte>(k);
  }
  EXPECT_EQ(store->put(key_of(1), rows), Put::stored);
  rows[weighed.shape.ids_bytes()] = std::byte{1};
  expect_throw<ArgumentError>([&] { store->put(key_of(2), rows); }, {"row 0", "4"});
  EXPECT_EQ(files().size(), 1u);

  std::vector<std::byte> file;
  BlockFile(weighed).encode(key_of(1), rows, file);
  write(only_file(), {reinterpret_cast<const char*>(file.data()), file.size()});
  EXPECT_FALSE(store->get(key_of(1), rows));
  EXPECT_EQ(store->stats().refused, 1u);
}

TEST_F(DirectoryBlockDamage, SaysWhenSomeoneElseRemovedWhatItNeeds) {
  const auto store = open();
  fs::remove(path);
  try {
    put(*store, 1);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const SystemError& error) {
    EXPECT_EQ(error.code().value(), ENOENT);
    const std::string text = error.what();
    EXPECT_NE(text.find("someone else removed"), text.npos) << text;
    EXPECT_EQ(text.find("make room"), text.npos) << text;
  }
}

TEST_F(DirectoryBlockDamage, ADamagedBlockCanBeStoredAgain) {
  const auto store = open();
  put(*store, 1);
  const fs::path file = only_file();
  const std::string good = contents(file);
  for (std::size_t size = 8; size < good.size(); ++size) {  // from the magic on it is ours
    write(file, good.substr(0, size));
    EXPECT_EQ(put(*store, 1), Put::stored) << size << " bytes";
    EXPECT_TRUE(has(*store, 1));
  }
  // Short, but with the checksum of what is there.
  const std::string body = "short";
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;
  crc.process_bytes(body.data(), body.size());
  const auto sum = static_cast<std::uint32_t>(crc.checksum());
  write(file, good.substr(0, 12) + std::string(reinterpret_cast<const char*>(&sum), 4) + body);
  EXPECT_EQ(put(*store, 1), Put::stored);
  EXPECT_TRUE(has(*store, 1));
}

// Else it would be `present`, and never found.
TEST_F(DirectoryBlockDamage, ADamagedBlockThatIsHeldHasNoRoomForAnother) {
  const auto store = open();
  put(*store, 1);
  ASSERT_TRUE(store->hold(key_of(1)));
  write(only_file(), contents(only_file()).substr(0, 50));
  EXPECT_EQ(put(*store, 1), Put::full);
  store->release(key_of(1));
  EXPECT_EQ(put(*store, 1), Put::stored);
}

TEST_F(DirectoryBlockDamage, AFileUnderAnotherBlocksNameIsForeign) {
  const auto store = open();
  put(*store, 1);
  const std::string one = contents(only_file());
  put(*store, 2);
  for (const fs::path& file : files()) write(file, one);
  EXPECT_TRUE(has(*store, 1));
  EXPECT_FALSE(has(*store, 2));
  EXPECT_EQ(store->stats().refused, 1u);
}

TEST_F(DirectoryBlockDamage, OtherWeightsAndShapesAreNotFound) {  // H29
  put(*open(), 1);
  const std::string file = contents(only_file());
  const auto other = [&](auto change) {
    BlockStoreOptions changed = options(100);
    change(changed);
    const auto store = make_directory_block_store(path, changed);
    EXPECT_FALSE(has(*store, 1));
    EXPECT_EQ(put(*store, 1), Put::stored);  // beside it
    EXPECT_TRUE(has(*store, 1));
    // Nor if it has the name that they look for.
    for (const fs::path& found : files()) write(found, file);
    EXPECT_FALSE(has(*store, 1));
  };
  other([](BlockStoreOptions& o) { o.model_version = "v2"; });
  other([](BlockStoreOptions& o) { o.shape = ModelShape::uniform(2, 2, 255); });
  other([](BlockStoreOptions& o) { o.shape = ModelShape({0, 2}, 2, 256); });
  other([](BlockStoreOptions& o) { o.shape = o.shape.with_repeated_experts(); });
  other([](BlockStoreOptions& o) { o.shape = ModelShape::uniform(1, 4, 256); });
  other([](BlockStoreOptions& o) {
    o.shape = ModelShape::uniform(2, 1, 256);
    o.block_size = 8;
  });
  EXPECT_TRUE(has(*open(), 1));
}

TEST_F(DirectoryBlockDamage, WhatIsNoFileOfOursIsLeftAlone) {
  const auto store = open(2);
  put(*store, 1);
  const fs::path file = only_file();
  const fs::path elsewhere = parent / "elsewhere";
  fs::copy_file(file, elsewhere);
  fs::remove(file);
  fs::create_symlink(elsewhere, file);
  EXPECT_FALSE(has(*store, 1));
  EXPECT_EQ(put(*store, 1), Put::full);
  fs::remove(file);
  fs::create_directory(file);
  EXPECT_FALSE(has(*store, 1));
  fs::remove(file);
  ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
  EXPECT_FALSE(has(*store, 1));
  fs::remove(file);
  write(file, "another program's notes");
  EXPECT_FALSE(has(*store, 1));
  EXPECT_EQ(put(*store, 1), Put::full);
  for (const int number : {2, 3, 4, 5}) put(*store, number);
  EXPECT_EQ(contents(file), "another program's notes");
  EXPECT_EQ(contents(elsewhere).size(), kFileBytes);
}

TEST_F(DirectoryBlockDamage, LeftoversOfDeadWritersGo) {
  const auto store = open(1);
  const fs::path old = path / ".unfinished-1-1";
  const fs::path fresh = path / ".unfinished-1-2";
  write(old, "half");
  write(fresh, "half");
  fs::last_write_time(old, fs::file_time_type::clock::now() - std::chrono::hours(1));
  put(*store, 1);
  EXPECT_FALSE(fs::exists(old));
  EXPECT_TRUE(fs::exists(fresh));
  EXPECT_EQ(files().size(), 2u);
}

}  // namespace
}  // namespace moetap
