#include <moetap/error.h>
#include <moetap/offload.h>
#include <moetap/read_rows.h>

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace moetap {
namespace {

void check_store(const BlockStore& store, const Ledger& ledger, const Reader& reader) {
  const BlockStoreOptions& options = store.options();
  if (options.shape == reader.shape() && options.block_size == ledger.block_size()) return;
  throw ArgumentError(fmt::format(
      "a block store of {} rows a block of {} for a ledger of {} a block and a reader of {}",
      options.block_size, options.shape.to_string(), ledger.block_size(),
      reader.shape().to_string()));
}

}  // namespace

bool store_block(BlockStore& store, const BlockKey& key, const Ledger& ledger, Reader& reader,
                 BlockId block, Milliseconds timeout) {
  check_store(store, ledger, reader);
  const Routes routes = read_rows(reader, ledger.block_rows(block), timeout);
  return routes.all_present() && store.put(key, routes.bytes()) != BlockStore::Put::full;
}

std::int64_t load_blocks(BlockStore& store, std::span<const BlockKey> keys, Ledger& ledger,
                         Reader& reader, Step step, RequestId request, std::int64_t position,
                         Milliseconds timeout) {
  check_store(store, ledger, reader);
  const auto size = static_cast<std::size_t>(ledger.block_size());
  if (position % ledger.block_size() != 0) {
    throw ArgumentError(fmt::format(
        "blocks of {} that are loaded from position {} on; it must be a multiple of the block size",
        ledger.block_size(), position));
  }
  const std::int64_t room =
      std::numeric_limits<std::int64_t>::max() - std::max<std::int64_t>(position, 0);
  if (keys.size() > static_cast<std::size_t>(room / ledger.block_size())) {
    throw RangeError(
        fmt::format("{} blocks of {} that are loaded from position {} on; a sequence has positions "
                    "below 2^63",
                    keys.size(), ledger.block_size(), position));
  }
  const std::int64_t tokens = static_cast<std::int64_t>(keys.size()) * ledger.block_size();
  const FillPlan plan = ledger.fill(step, request, {position, position + tokens});
  if (plan.slots.empty()) return 0;

  const std::size_t block_bytes = store.options().block_bytes();
  std::vector<std::byte> rows(keys.size() * block_bytes);
  std::vector<RowState> states(plan.slots.size(), RowState::present);
  std::int64_t found = 0;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (store.get(keys[i], std::span(rows).subspan(i * block_bytes, block_bytes))) {
      ++found;
    } else {
      std::ranges::fill(std::span(states).subspan(i * size, size), RowState::missing);
    }
  }
  fill_rows(reader, plan, rows, states, timeout);
  return found;
}

}  // namespace moetap
