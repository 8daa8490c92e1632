#include <moetap/directory_block_store.h>
#include <moetap/offload.h>
#include <moetap/read_rows.h>

#include <boost/crc.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "ipc/store/block_directory.h"
#include "ipc/store/block_file.h"
#include "test/ipc/child_process.h"
#include "test/lib/block_store_cases.h"
#include "test/lib/slot_memory.h"
#include "test/lib/throws.h"

namespace moetap {
namespace {

namespace fs = std::filesystem;

using test::ChildProcess;
using test::expect_throw;
using test::has;
using test::key_of;
using test::put;
using test::rows_for;
using test::Signal;
using test::small_store;
using Put = BlockStore::Put;

// A directory of its own for each test, gone afterwards.
class DirectoryBlockStoreTest : public testing::Test {
 protected:
  DirectoryBlockStoreTest() {
    std::string name = (fs::temp_directory_path() / "moetap-blocks-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    parent = name;
    path = parent / "blocks";
  }
  ~DirectoryBlockStoreTest() override {
    std::error_code ignored;
    fs::remove_all(parent, ignored);
  }

  // Room for this many files.
  static BlockStoreOptions options(std::size_t files) {
    BlockStoreOptions options = small_store(1);
    options.max_bytes = files * kFileBytes;
    return options;
  }
  std::unique_ptr<BlockStore> open(std::size_t files = 100) const {
    return make_directory_block_store(path, options(files));
  }

  std::vector<fs::path> files() const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(path)) found.push_back(entry.path());
    std::ranges::sort(found);
    return found;
  }
  fs::path only_file() const {
    const auto found = files();
    if (found.size() != 1) throw std::runtime_error(std::to_string(found.size()) + " files");
    return found[0];
  }
  static std::string contents(const fs::path& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static void write(const fs::path& file, const std::string& bytes) {
    std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
  }

  // [magic, version, checksum][4 numbers, 2 layers][weights][key][rows]
  static constexpr std::size_t kFileBytes = 16 + 7 * 4 + 4 + 2 + 4 + 64 + 16;

  fs::path parent;
  fs::path path;
};

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

// --- what is no block
// -----------------------------------------------------------------------------

TEST_F(DirectoryBlockStoreTest, AChangedByteIsNeverData) {
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

TEST_F(DirectoryBlockStoreTest, AFileOfAnotherLengthIsNeverData) {
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
TEST_F(DirectoryBlockStoreTest, AnIdThatTheModelDoesNotHaveIsNeverData) {  // H20
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

TEST_F(DirectoryBlockStoreTest, AnExpertThatIsPickedTwiceIsNeverData) {  // H32
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

TEST_F(DirectoryBlockStoreTest, BytesBetweenIdsAndWeightsAreNeverData) {
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

TEST_F(DirectoryBlockStoreTest, SaysWhenSomeoneElseRemovedWhatItNeeds) {
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

TEST_F(DirectoryBlockStoreTest, ADamagedBlockCanBeStoredAgain) {
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
TEST_F(DirectoryBlockStoreTest, ADamagedBlockThatIsHeldHasNoRoomForAnother) {
  const auto store = open();
  put(*store, 1);
  ASSERT_TRUE(store->hold(key_of(1)));
  write(only_file(), contents(only_file()).substr(0, 50));
  EXPECT_EQ(put(*store, 1), Put::full);
  store->release(key_of(1));
  EXPECT_EQ(put(*store, 1), Put::stored);
}

TEST_F(DirectoryBlockStoreTest, AFileUnderAnotherBlocksNameIsForeign) {
  const auto store = open();
  put(*store, 1);
  const std::string one = contents(only_file());
  put(*store, 2);
  for (const fs::path& file : files()) write(file, one);
  EXPECT_TRUE(has(*store, 1));
  EXPECT_FALSE(has(*store, 2));
  EXPECT_EQ(store->stats().refused, 1u);
}

TEST_F(DirectoryBlockStoreTest, OtherWeightsAndShapesAreNotFound) {  // H29
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

TEST_F(DirectoryBlockStoreTest, WhatIsNoFileOfOursIsLeftAlone) {
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

TEST_F(DirectoryBlockStoreTest, LeftoversOfDeadWritersGo) {
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
