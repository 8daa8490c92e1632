// Rows follow their KV blocks: to a store when a block is full or offloaded, and back when its
// tokens are loaded into a request's block, in this process or another.
#pragma once

#include <moetap/block_store.h>
#include <moetap/export.h>
#include <moetap/ledger.h>
#include <moetap/reader.h>

#include <cstdint>
#include <span>

namespace moetap {

// Stores the rows of a full block under its hash, after waiting up to `timeout` for their steps.
// Returns false, and stores nothing, if they are not all present or the store is full. TimeoutError
// if a step does not arrive. ArgumentError if the store has another shape or block size.
MOETAP_API bool store_block(BlockStore& store, const BlockKey& key, const Ledger& ledger,
                            Reader& reader, BlockId block, Milliseconds timeout);

// For tokens that were loaded from elsewhere: one block for each of `keys`, from `position` on.
// Puts the rows that the store has and returns for how many blocks; the rows of other blocks are
// missing. `step` is as in Ledger::fill. ArgumentError as above, or if `position` is not the first
// of a block. StateError and RangeError as Ledger::fill. After a TimeoutError none of these rows is
// present: they are missing, or stale where the block has rows of an earlier owner.
MOETAP_API std::int64_t load_blocks(BlockStore& store, std::span<const BlockKey> keys,
                                    Ledger& ledger, Reader& reader, Step step, RequestId request,
                                    std::int64_t position, Milliseconds timeout);

}  // namespace moetap
