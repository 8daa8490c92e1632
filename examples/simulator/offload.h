// The destination of full blocks that leave the KV cache: their rows are stored under the blocks'
// hashes, and come back with the blocks. (There is no KV here; a block counts as offloaded if its
// rows are.)
#pragma once

#include <moetap/block_store.h>
#include <moetap/ledger.h>
#include <moetap/reader.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "examples/simulator/kv_cache.h"
#include "examples/simulator/plan.h"

namespace demo {

struct OffloadOptions {
  std::int64_t blocks = 0;  // that the store has room for; 0: no store
  std::string directory;    // for a store of files shared with other processes; "": in memory
};

class Offload {
 public:
  // A store of the engine's own in memory, or one in a directory.
  Offload(const OffloadOptions& options, const moetap::ModelShape& shape, int block_size,
          moetap::Ledger& ledger, moetap::Reader& reader, moetap::Milliseconds timeout);

  // A block with this hash is about to get new contents. Stored only if all of its rows are
  // present.
  void store(BlockId block, BlockHash hash);

  // How many of the blocks, from the first on, are stored. They are held until load() or let_go().
  std::int64_t hold(std::span<const BlockHash> hashes);

  // Puts the rows of the held blocks into the request's blocks from `position` on, as `step`.
  // moetap::StateError if one of them cannot be read.
  void load(Step step, RequestId request, std::int64_t position);
  void let_go();

  std::uint64_t stored() const { return stored_; }  // blocks so far

 private:
  moetap::Ledger& ledger_;
  moetap::Reader& reader_;
  moetap::Milliseconds timeout_;
  std::unique_ptr<moetap::BlockStore> store_;
  std::vector<moetap::BlockKey> held_;
  std::uint64_t stored_ = 0;
};

}  // namespace demo
