#include "lib/ledger/block_book.h"

#include <moetap/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "lib/internal/injection.h"
#include "lib/internal/number_format.h"

namespace moetap::detail {
namespace {

std::size_t checked_blocks(std::int64_t num_blocks, int block_size) {
  constexpr std::int64_t kMaxSlots = std::int64_t{1} << 40;
  if (block_size < 1 || num_blocks < 1 || num_blocks > kMaxSlots / block_size) {
    throw ArgumentError(fmt::format(
        "a ledger of {} blocks of {} slots; allowed are at least 1 of each, {} slots in all",
        num_blocks, block_size, kMaxSlots));
  }
  return static_cast<std::size_t>(num_blocks);
}

}  // namespace

BlockBook::BlockBook(std::int64_t num_blocks, int block_size)
    : block_size_(block_size),
      blocks_(checked_blocks(num_blocks, block_size)),
      stamps_(blocks_.size() * static_cast<std::size_t>(block_size)) {}

void BlockBook::require_valid(BlockId block) const {
  if (block >= 0 && block < BlockId(num_blocks())) return;
  throw RangeError(
      fmt::format("block {} is outside [0, {}), the anchor KV-cache group's blocks that the ledger "
                  "was made for",
                  block, num_blocks()));
}

void BlockBook::require_distinct(std::span<const BlockId> blocks) {
  ++marks_;
  for (const BlockId block : blocks) {
    require_valid(block);
    if (at(block).mark == marks_) {
      throw ArgumentError(
          fmt::format("block {} comes twice in a list of {}; each holds other positions", block,
                      blocks.size()));
    }
    at(block).mark = marks_;
  }
}

void BlockBook::require_free(std::span<const BlockId> blocks) const {
  const auto held_one = std::ranges::find_if(blocks, [this](BlockId block) { return held(block); });
  if (held_one == blocks.end()) return;
  throw StateError(
      fmt::format("block {} is held (last for request {}), since rows in it are not read yet; read "
                  "or release them before the block gets new tokens",
                  *held_one, at(*held_one).holder));
}

BlockClaim BlockBook::give(BlockId block, int kept) {
  at(block).generation = ++generations_;
  at(block).hit = false;
  at(block).last_put_before = at(block).last_put;
  at(block).moved_in = 0;
  if (!MOETAP_OFF("H9 rows of an earlier owner")) {
    std::fill(mutable_stamps(block) + kept, mutable_stamps(block) + block_size_, RowStamp());
  }
  return {block, at(block).generation, true};
}

std::span<const RowStamp> BlockBook::stamps(BlockId block) const {
  return {stamps_.data() + first_slot(block, block_size_).value(),
          static_cast<std::size_t>(block_size_)};
}

void BlockBook::compute(Step step, BlockId block, int first, int draft, int end) {
  set_last_write(block, step);
  RowStamp* const stamps = mutable_stamps(block);
  std::fill(stamps + first, stamps + draft, RowStamp::computed(step));
  std::fill(stamps + draft, stamps + end, RowStamp::draft(step));
}

void BlockBook::hold(std::span<const BlockId> blocks, RequestId request) {
  for (const BlockId block : blocks) {
    at(block).holder = request;
    ++at(block).holds;
  }
}

void BlockBook::release(std::span<const BlockId> blocks) {
  for (const BlockId block : blocks) --at(block).holds;
}

}  // namespace moetap::detail
