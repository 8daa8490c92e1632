// A block store in a directory, with a look at its files.
#pragma once

#include <moetap/directory_block_store.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "test/lib/block_store_cases.h"

namespace moetap::test {

// A directory of its own for each test, gone afterwards.
class DirectoryBlockStoreTest : public testing::Test {
 protected:
  DirectoryBlockStoreTest() {
    std::string name = (std::filesystem::temp_directory_path() / "moetap-blocks-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    parent = name;
    path = parent / "blocks";
  }
  ~DirectoryBlockStoreTest() override {
    std::error_code ignored;
    std::filesystem::remove_all(parent, ignored);
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

  std::vector<std::filesystem::path> files() const {
    std::vector<std::filesystem::path> found;
    for (const auto& entry : std::filesystem::directory_iterator(path))
      found.push_back(entry.path());
    std::ranges::sort(found);
    return found;
  }
  std::filesystem::path only_file() const {
    const auto found = files();
    if (found.size() != 1) throw std::runtime_error(std::to_string(found.size()) + " files");
    return found[0];
  }
  static std::string contents(const std::filesystem::path& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static void write(const std::filesystem::path& file, const std::string& bytes) {
    std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
  }

  // [magic, version, checksum][4 numbers, 2 layers][weights][key][rows]
  static constexpr std::size_t kFileBytes = 16 + 7 * 4 + 4 + 2 + 4 + 64 + 16;

  std::filesystem::path parent;
  std::filesystem::path path;
};

}  // namespace moetap::test
