// Rows that go where KV blocks go: to a store when a block is full or offloaded, and back when its
// tokens are loaded into a block of some request, in this process or another.
#pragma once

#include <moetap/block_store.h>
#include <moetap/ledger.h>
#include <moetap/reader.h>

#include <cstdint>
#include <span>

namespace moetap {

// Stores the rows of a full block under its hash. False, and nothing is stored, if they are not all
// present or the store is full. TimeoutError if a step of them does not come. ArgumentError if the
// store is of another shape or block size.
bool store_block(BlockStore& store, const BlockKey& key, const Ledger& ledger, Reader& reader,
                 BlockId block, Milliseconds limit);

// The request's tokens from `position` on, a block for each of `keys`, were loaded from elsewhere
// (Ledger::fill, with its `step`): puts the rows that the store has for them, and returns for how
// many blocks. The rows of the others are missing. ArgumentError as above, or if `position` is not
// a block's first; StateError and RangeError as Ledger::fill. TimeoutError after which none of
// them is present: missing, or stale where the block has rows of an earlier owner.
std::int64_t load_blocks(BlockStore& store, std::span<const BlockKey> keys, Ledger& ledger,
                         Reader& reader, Step step, std::uint64_t request, std::int64_t position,
                         Milliseconds limit);

}  // namespace moetap
