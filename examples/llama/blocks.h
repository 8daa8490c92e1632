// The blocks of the KV cache, and who has them.
#pragma once

#include <moetap/types.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace example {

// A block may have several owners: sequences with the same prefix.
class Blocks {
 public:
  explicit Blocks(std::int64_t count) : owners_(static_cast<std::size_t>(count)) {
    for (std::int64_t block = count; block-- > 0;) free_.push_back(block);
  }

  std::size_t free() const { return free_.size(); }
  moetap::BlockId take() {
    const std::int64_t block = free_.back();
    free_.pop_back();
    ++owners_[static_cast<std::size_t>(block)];
    return moetap::BlockId(block);
  }
  void share(moetap::BlockId block) { ++owners_[index(block)]; }
  void give_back(moetap::BlockId block) {
    if (--owners_[index(block)] == 0) free_.push_back(static_cast<std::int64_t>(index(block)));
  }

 private:
  static std::size_t index(moetap::BlockId block) {
    return static_cast<std::size_t>(block.value());
  }

  std::vector<int> owners_;
  std::vector<std::int64_t> free_;
};

}  // namespace example
