#include <moetap/error.h>
#include <moetap/pending_rows.h>
#include <moetap/read_rows.h>

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "lib/internal/number_format.h"

namespace moetap {

void PendingRows::add(RowPlan plan) {
  const RequestId request = plan.request;
  const auto [entry, added] = pending_.try_emplace(request);
  if (!added) {
    throw StateError(fmt::format(
        "rows of request {} wait already; collect() or drop() them before others", request));
  }
  try {
    entry->second.hold = ledger_.hold(plan);
  } catch (...) {
    pending_.erase(entry);
    throw;
  }
  entry->second.plan = std::move(plan);
}

void PendingRows::take_early(std::span<const BlockId> blocks, Milliseconds timeout) {
  std::unordered_set<BlockId> wanted;
  for (const BlockId block : blocks) {
    if (ledger_.held(block)) wanted.insert(block);
  }
  if (wanted.empty()) return;
  for (auto& [request, pending] : pending_) {
    const auto is_wanted = [&](BlockId block) { return wanted.contains(block); };
    if (std::ranges::none_of(pending.plan.blocks, is_wanted)) continue;  // or taken already
    pending.taken = read_rows(reader_, pending.plan, timeout);
    pending.hold = Hold();
    pending.plan = RowPlan();
  }
}

Routes PendingRows::collect(RequestId request, Milliseconds timeout) {
  const auto found = find(request);
  Pending& pending = found->second;
  Routes routes =
      pending.taken ? std::move(*pending.taken) : read_rows(reader_, pending.plan, timeout);
  pending_.erase(found);
  return routes;
}

void PendingRows::drop(RequestId request) { pending_.erase(find(request)); }

PendingRows::Map::iterator PendingRows::find(RequestId request) {
  const auto found = pending_.find(request);
  if (found == pending_.end()) {
    throw StateError(fmt::format(
        "no rows of request {} wait: add() its plan first, and collect() it once", request));
  }
  return found;
}

}  // namespace moetap
