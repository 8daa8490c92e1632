// How requests come and go.
#include <algorithm>
#include <utility>

#include "test/simulation/engine.h"

namespace moetap::simulation {

// Few tokens and few lengths, so that many requests begin alike.
void Engine::arrive() {
  Request request;
  request.id = RequestId(++requests_so_far_);
  const std::int64_t prompt = 1 + draw(17);
  for (std::int64_t i = 0; i < prompt; ++i) {
    request.tokens.push_back(i < 12 && chance(97) ? 0 : static_cast<int>(draw(1)));
  }
  request.goes_on = chance(options_.continued);
  request.most = prompt + 1 + (request.goes_on ? 0 : draw(12));
  request.wants_rows = request.goes_on || chance(85);
  request.start = request.goes_on || chance(80) ? 0 : draw(prompt);
  if (place(request, false, 0)) requests_[request.id] = std::move(request);
}

// Its keys and values come along, its rows do not.
bool Engine::arrive_from_elsewhere(const Continuation& continuation) {
  Request request;
  request.id = RequestId(++requests_so_far_);
  request.tokens = continuation.tokens;
  request.most = size(request.tokens) + 1 + draw(8);
  request.start = continuation.rows.range().end;
  request.before = continuation.rows;
  if (!place(request, false, request.start)) return false;
  ++counts_[Event::continued];
  requests_[request.id] = std::move(request);
  return true;
}

// The tokens below `elsewhere` need no computing.
bool Engine::place(Request& request, bool resumed, std::int64_t elsewhere) {
  std::vector<BlockId> blocks = hit(request);
  const auto cached = static_cast<std::int64_t>(blocks.size()) * kBlock;
  for (const BlockId id : blocks) ++block(id).users;
  const std::int64_t least = std::max<std::int64_t>(0, elsewhere - cached + kBlock - 1) / kBlock;
  const std::int64_t most = (size(request.tokens) - cached + kBlock - 1) / kBlock;
  std::vector<BlockId> fresh;
  if (!take_blocks(std::max(least, draw(most)), fresh)) {
    for (const BlockId id : blocks) --block(id).users;
    return false;
  }
  blocks.insert(blocks.end(), fresh.begin(), fresh.end());
  request.rows.clear();
  request.covered.clear();
  request.standing.clear();
  std::int64_t known = cached;  // of the cached positions, from the front
  for (std::int64_t p = 0; p < cached; ++p) {
    const RowRef& row = at(oracle_.belongs, slot_of(blocks, p));
    if (row == nullptr || row->step <= flushed_) known = std::min(known, p);
    request.rows.push_back(request.wants_rows ? row : nullptr);
  }
  const std::int64_t rows = ledger_.cached_rows({blocks, cached});
  require(rows == known, "{} of {} cached rows are known to the ledger, not {}", rows, cached,
          known);
  if (resumed) {
    ledger_.resume(request.id, {blocks, cached});
  } else {
    ledger_.admit(
        {request.id, size(request.tokens), {blocks, cached}, request.wants_rows, request.start});
  }
  history_.note("request {} is here{} with {} tokens, {} cached", request.id,
                resumed ? " again" : "", request.tokens.size(), cached);
  counts_[Event::prefix_hits] += cached;
  request.blocks = std::move(blocks);
  request.computed = request.reach = std::max(cached, elsewhere);
  request.known = cached;
  request.hits = request.computed;
  request.run = std::make_shared<Run>(Run{request.computed, size(request.tokens), false});
  if (!options_.per_request && chance(15))
    (store_ != nullptr && chance(60)) ? load(request) : fill(request);
  return true;
}

void Engine::preempt(Request& request) {
  request.keeps = false;
  options_.keeps ? keep(request) : ledger_.preempt(request.id);
  history_.note("request {} is preempted", request.id);
  ++counts_[Event::preemptions];
  end_in_worker(request.id, RequestEnd::preempted);
  request.run->over = true;
  request.run = nullptr;
  for (const BlockId id : request.blocks) --block(id).users;
  request.blocks.clear();
  request.rows.clear();
  request.covered.clear();
  request.computed = request.reach = request.known = 0;
}

void Engine::finish(Request& request) {
  const TokenRange range{request.start,
                         request.wants_rows ? size(request.tokens) - 1 : request.start};
  Oracle::Expected expected = expect(request, range);
  const RowPlan plan = ledger_.finish(request.id, size(request.tokens));
  require(plan.range == range, "request {} finishes with the rows [{}, {}), not [{}, {})",
          request.id, plan.range.start, plan.range.end, range.start, range.end);
  ++counts_[Event::finished];
  end_in_worker(request.id, RequestEnd::finished);
  leave(request, plan, std::move(expected));
  end(request);
}

void Engine::abort(Request& request) {
  const std::int64_t end_of_rows = std::min(size(request.tokens) - 1, request.known);
  const TokenRange range{request.start,
                         std::max(request.start, request.wants_rows ? end_of_rows : 0)};
  Oracle::Expected expected = expect(request, range);
  const RowPlan plan = ledger_.abort(request.id);
  require(plan.range == range, "request {} is aborted with the rows [{}, {}), not [{}, {})",
          request.id, plan.range.start, plan.range.end, range.start, range.end);
  ++counts_[Event::aborts];
  request.goes_on = false;
  end_in_worker(request.id, RequestEnd::aborted);
  if (!options_.per_request) leave(request, plan, std::move(expected));
  end(request);
}

void Engine::end(Request& request) {
  history_.note("request {} is over with {} tokens", request.id, request.tokens.size());
  if (request.run) request.run->over = true;
  for (const BlockId id : request.blocks) --block(id).users;
  requests_.erase(request.id);
}

// The worker hears of it after the steps that are in flight.
void Engine::end_in_worker(RequestId request, RequestEnd how) {
  tell_worker([this, request, how] { worker_.end_request(request, how); });
}

void Engine::tell_worker(std::function<void()> told) {
  if (in_flight_.empty()) return told();
  in_flight_.back().told.push_back(std::move(told));
}

}  // namespace moetap::simulation
