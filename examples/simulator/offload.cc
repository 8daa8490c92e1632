#include "examples/simulator/offload.h"

#include <moetap/directory_block_store.h>
#include <moetap/error.h>
#include <moetap/offload.h>

#include <fmt/format.h>

#include <vector>

#include "lib/internal/number_format.h"

namespace demo {
namespace {

moetap::BlockKey key_of(const BlockHash& hash) {
  return moetap::BlockKey(std::as_bytes(std::span(&hash, 1)));
}

std::unique_ptr<moetap::BlockStore> make_store(const OffloadOptions& options,
                                               const moetap::ModelShape& shape, int block_size) {
  moetap::BlockStoreOptions store{
      .shape = shape, .block_size = block_size, .model_version = "demo"};
  store.max_bytes = static_cast<std::size_t>(options.blocks) * store.block_bytes();
  if (options.directory.empty()) return moetap::make_memory_block_store(store);
  store.max_bytes += static_cast<std::size_t>(options.blocks) * 4096;  // a file has more than rows
  return moetap::make_directory_block_store(options.directory, store);
}

}  // namespace

Offload::Offload(const OffloadOptions& options, const moetap::ModelShape& shape, int block_size,
                 moetap::Ledger& ledger, moetap::Reader& reader, moetap::Milliseconds timeout)
    : ledger_(ledger),
      reader_(reader),
      timeout_(timeout),
      store_(make_store(options, shape, block_size)) {}

void Offload::store(BlockId block, BlockHash hash) {
  const moetap::BlockKey key = key_of(hash);
  if (moetap::store_block(*store_, key, ledger_, reader_, block, timeout_)) ++stored_;
}

std::int64_t Offload::hold(std::span<const BlockHash> hashes) {
  for (const BlockHash& hash : hashes) {
    const moetap::BlockKey key = key_of(hash);
    if (!store_->hold(key)) break;
    held_.push_back(key);
  }
  return std::ssize(held_);
}

void Offload::load(Step step, RequestId request, std::int64_t position) {
  const std::int64_t loaded =
      moetap::load_blocks(*store_, held_, ledger_, reader_, step, request, position, timeout_);
  if (ledger_.wants_rows(request) && loaded != std::ssize(held_)) {
    throw moetap::StateError(fmt::format("{} of {} offloaded blocks of request {} cannot be read",
                                         std::ssize(held_) - loaded, held_.size(), request));
  }
  let_go();
}

void Offload::let_go() {
  for (const moetap::BlockKey& key : held_) store_->release(key);
  held_.clear();
}

}  // namespace demo
