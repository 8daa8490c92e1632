// Slot arithmetic, and which KV-cache group's slots count.
#pragma once

#include <moetap/types.h>

#include <span>
#include <vector>

namespace moetap {

// Slots of positions [range.start, range.end) of a sequence that owns `blocks` in order.
// out.size() must be range.size(). RangeError if the range leaves the blocks or a block id is
// negative; ArgumentError for a block size below 1.
void slots_of(std::span<const BlockId> blocks, int block_size, TokenRange range,
              std::span<Slot> out);
std::vector<Slot> slots_of(std::span<const BlockId> blocks, int block_size, TokenRange range);

// One KV-cache group of an engine. A `uniform` group wraps groups that share a block table.
struct KvCacheGroup {
  enum class Kind { full_attention, mla, sliding_window, chunked_local, mamba, uniform };
  Kind kind = Kind::full_attention;
  int block_size = 16;
  std::vector<KvCacheGroup> members;  // of a uniform group, else empty
};

// The index of the group whose slots name rows: the first that is full attention (also MLA, and a
// uniform group whose members all are). Workers and schedulers both call this, so that they agree.
// ArgumentError if there is none, with the kinds that were given.
std::size_t anchor_group(std::span<const KvCacheGroup> groups);

}  // namespace moetap
