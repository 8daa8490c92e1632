// Slot arithmetic, and the choice of the anchor KV-cache group.
#pragma once

#include <moetap/export.h>
#include <moetap/types.h>

#include <span>
#include <vector>

namespace moetap {

// The slots of positions [range.start, range.end) of a sequence with these `blocks`, in order.
// out.size() must be range.size(). RangeError if the range leaves the blocks or a block id is
// negative. ArgumentError for a block size below 1.
MOETAP_API void slots_of(std::span<const BlockId> blocks, int block_size, TokenRange range,
                         std::span<Slot> out);
MOETAP_API std::vector<Slot> slots_of(std::span<const BlockId> blocks, int block_size,
                                      TokenRange range);

// One KV-cache group of an engine. A `uniform` group wraps groups that share a block table.
struct KvCacheGroup {
  enum class Kind { full_attention, mla, sliding_window, chunked_local, mamba, uniform };
  Kind kind = Kind::full_attention;
  int block_size = 16;
  std::vector<KvCacheGroup> members;  // of a uniform group, else empty
};

// The index of the anchor group, whose slots identify rows: the first full-attention group. MLA
// counts as full attention, and so does a uniform group whose members all do. Worker and scheduler
// both call this, so that they agree. ArgumentError with the given kinds if there is none.
MOETAP_API std::size_t anchor_group(std::span<const KvCacheGroup> groups);

}  // namespace moetap
