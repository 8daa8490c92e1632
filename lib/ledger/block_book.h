// What the ledger knows about the blocks of the KV cache, independent of requests.
#pragma once

#include <moetap/types.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace moetap::detail {

// The entry of a slot: the step of the row that belongs there (0 for none) and two flags. Put: the
// row was put there under that number instead of being computed in it, so no worker will report it.
// Draft: the row is a draft's that is not yet known to be accepted here.
class RowStamp {
 public:
  // Steps are smaller than this.
  static constexpr Step kStepLimit = Step(std::uint64_t{1} << 62);

  RowStamp() = default;
  static RowStamp computed(Step step) { return RowStamp(step.value()); }
  static RowStamp draft(Step step) { return RowStamp(step.value() | kDraft); }
  static RowStamp put(Step step) { return RowStamp(step.value() | kPut); }

  // The same row, put elsewhere under this number.
  RowStamp moved(Step step) const { return RowStamp(step.value() | kPut | (bits_ & kDraft)); }
  // The same row, whose token was accepted here.
  RowStamp standing() const { return RowStamp(bits_ & ~kDraft); }

  Step step() const { return Step(bits_ & (kDraft - 1)); }
  // The step of the position's row; 0 if the row is a draft's.
  Step row_step() const { return is_draft() ? Step() : step(); }
  bool is_put() const { return (bits_ & kPut) != 0; }
  bool is_draft() const { return (bits_ & kDraft) != 0; }

 private:
  static constexpr std::uint64_t kDraft = kStepLimit.value();
  static constexpr std::uint64_t kPut = kDraft << 1;

  explicit RowStamp(std::uint64_t bits) : bits_(bits) {}
  std::uint64_t bits_ = 0;
};

// A request's claim to a block. It is valid until the block is given to another request.
struct BlockClaim {
  BlockId block = 0;
  std::uint64_t generation = 0;
  bool owned = false;  // the block was given to this request, the only one that may write to it;
                       // otherwise a prefix hit
};

// Has for each slot the step in which its row was scheduled, and for each block the claims that are
// valid. All memory is allocated at construction: 8 bytes per slot, 64 per block.
class BlockBook {
 public:
  BlockBook(std::int64_t num_blocks, int block_size);

  std::int64_t num_blocks() const { return static_cast<std::int64_t>(blocks_.size()); }
  int block_size() const { return block_size_; }
  std::int64_t num_slots() const { return static_cast<std::int64_t>(stamps_.size()); }

  // RangeError unless all of them exist, ArgumentError if one comes twice.
  void require_distinct(std::span<const BlockId> blocks);
  // StateError if one is held.
  void require_free(std::span<const BlockId> blocks) const;
  void require_valid(BlockId block) const;

  // Gives the block to a new owner. Every earlier claim ends, and the rows from offset `kept` on
  // are no longer known.
  BlockClaim give(BlockId block, int kept = 0);
  // A claim to the block as it is now, which permits only reads.
  BlockClaim share(BlockId block) const { return {block, at(block).generation, false}; }
  // A prefix hit: the block's contents stay until it is given away.
  BlockClaim take_hit(BlockId block) {
    at(block).hit = true;
    return share(block);
  }
  bool hit(BlockId block) const { return at(block).hit; }
  void set_hit(BlockId block, bool hit) { at(block).hit = hit; }
  bool stands(const BlockClaim& claim) const {
    return at(claim.block).generation == claim.generation;
  }

  std::span<const RowStamp> stamps(BlockId block) const;
  // Slots [first, end) of the block get their rows in `step`; those from `draft` on are drafts.
  void compute(Step step, BlockId block, int first, int draft, int end);
  void set(BlockId block, int offset, RowStamp stamp) {
    mutable_stamps(block)[offset] = stamp;
    if (stamp.is_put()) at(block).last_put = std::max(at(block).last_put, stamp.step());
  }
  // The last step under which rows were put into the block, for any request.
  Step last_put(BlockId block) const { return at(block).last_put; }
  // As it was when the block was given to its owner.
  Step last_put_before(BlockId block) const { return at(block).last_put_before; }
  // The step under which the block's contents were moved there, for the present owner.
  Step moved_in(BlockId block) const { return at(block).moved_in; }
  void set_moved_in(BlockId block, Step step) { at(block).moved_in = step; }
  // The last step that may write to the block, for any request.
  Step last_write(BlockId block) const { return at(block).last_write; }
  void set_last_write(BlockId block, Step step) {
    at(block).last_write = std::max(at(block).last_write, step);
  }

  void hold(std::span<const BlockId> blocks, RequestId request);
  void release(std::span<const BlockId> blocks);
  bool held(BlockId block) const { return at(block).holds != 0; }

 private:
  struct Block {
    std::uint64_t generation = 0;
    Step last_write = 0;
    Step last_put = 0;
    Step last_put_before = 0;
    Step moved_in = 0;
    std::uint64_t mark = 0;  // the last require_distinct() that saw it
    RequestId holder = 0;    // the last request that held the block
    std::uint32_t holds = 0;
    bool hit = false;  // since it was given to its owner
  };

  const Block& at(BlockId block) const { return blocks_[static_cast<std::size_t>(block.value())]; }
  Block& at(BlockId block) { return blocks_[static_cast<std::size_t>(block.value())]; }
  RowStamp* mutable_stamps(BlockId block) {
    return stamps_.data() + first_slot(block, block_size_).value();
  }

  int block_size_;
  std::vector<Block> blocks_;
  std::vector<RowStamp> stamps_;  // by slot
  std::uint64_t generations_ = 0;
  std::uint64_t marks_ = 0;
};

}  // namespace moetap::detail
