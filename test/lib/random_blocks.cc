// The random engine's blocks: who gets them, where they go, and when their rows are read.
#include <algorithm>
#include <utility>

#include "random_engine.h"

namespace moetap::test {

std::vector<BlockId> RandomEngine::hit(const Request& request) {
  std::vector<BlockId> found;
  for (std::int64_t end = kBlock; end < size(request.tokens); end += kBlock) {
    std::vector<int> key{weights_};
    key.insert(key.end(), request.tokens.begin(), request.tokens.begin() + end);
    const auto cached = cache_.find(key);
    if (cached == cache_.end()) break;
    found.push_back(cached->second);
  }
  return found;
}

void RandomEngine::cache(const Request& request, std::int64_t end) {
  for (std::int64_t i = 0; (i + 1) * kBlock <= end; ++i) {
    const BlockId id = request.blocks.at(static_cast<std::size_t>(i));
    std::vector<int> key{weights_};
    key.insert(key.end(), request.tokens.begin(), request.tokens.begin() + (i + 1) * kBlock);
    if (block(id).key.empty() && cache_.emplace(key, id).second) block(id).key = key;
  }
}

void RandomEngine::uncache(BlockId id) {
  cache_.erase(block(id).key);
  block(id).key.clear();
}

// --- who gets a block
// -------------------------------------------------------------------------------

bool RandomEngine::usable(BlockId id) {
  if (block(id).users > 0) return false;
  if (!ledger_.held(id)) return true;
  ++counts_.held_back;
  if (reading_ != Reading::early) return false;
  for (Read& read : reads_) {
    const bool touches = std::ranges::find(read.plan.blocks, id) != read.plan.blocks.end();
    if (touches && !read.taken && done_by(read.plan.last_step)) {
      read.taken = oracle_.states(read.expected);
      ++counts_.taken_early;
    }
  }
  try {
    pending_.take_early(std::vector{id}, kNow);
  } catch (const TimeoutError&) {  // of a step in flight
    return false;
  }
  return true;
}

// Any that is not cached, else the one of the cache that was used longest ago.
std::optional<BlockId> RandomEngine::take_block() {
  std::vector<BlockId> free;
  for (BlockId id = 0; id < num_blocks_; ++id) {
    if (block(id).key.empty() && block(id).users == 0 && usable(id)) free.push_back(id);
  }
  if (free.empty()) {
    for (const auto& [key, id] : cache_) {
      if (block(id).users > 0 || (!free.empty() && block(id).used > block(free[0]).used)) continue;
      if (usable(id)) free.assign(1, id);
    }
  }
  if (free.empty()) return std::nullopt;
  const BlockId id = any_of(free);
  uncache(id);
  ++block(id).users;
  block(id).used = ++uses_;
  for (Slot slot = id * kBlock; slot < (id + 1) * kBlock; ++slot)
    at(oracle_.belongs, slot) = nullptr;
  return id;
}

bool RandomEngine::take_blocks(std::int64_t count, std::vector<BlockId>& taken) {
  while (static_cast<std::int64_t>(taken.size()) < count) {
    if (const auto id = take_block()) {
      taken.push_back(*id);
      continue;
    }
    const auto ready = std::ranges::find_if(
        reads_, [&](const Read& read) { return done_by(read.plan.last_step); });
    if (reading_ == Reading::held && ready != reads_.end()) {
      collect(static_cast<std::size_t>(ready - reads_.begin()));
      continue;
    }
    for (const BlockId id : taken) --block(id).users;
    taken.clear();
    return false;
  }
  return true;
}

// --- rows that are put
// ------------------------------------------------------------------------------

// Steps that may have to be corrected come first.
void RandomEngine::before_put() {
  if (most_drafts_ > 0) drain();
}

// Some of the prompt comes from elsewhere.
void RandomEngine::load(Request& request) {
  const auto room = static_cast<std::int64_t>(request.blocks.size()) * kBlock;
  const std::int64_t most = std::min(size(request.tokens) - 1, room) - request.computed;
  if (most <= 0 || (most_drafts_ > 0 && !in_flight_.empty())) return;
  Work work;
  work.blocks = request.blocks;
  work.positions = {request.computed, request.computed + 1 + draw(most - 1)};
  Put put;
  put.fill = ledger_.fill(++step_, request.id, work.positions);
  ++counts_.fills;
  set_rows(request, work, step_);
  request.computed = request.run->next = work.positions.end;
  if (!request.wants_rows) return;
  put.after = work.rows;
  puts_.push_back(std::move(put));
  while (!puts_.empty() && is_ready(puts_.front()) && chance(70)) do_put();
}

void RandomEngine::move() {
  before_put();
  std::vector<BlockId> sources;
  for (BlockId id = 0; id < num_blocks_; ++id) {
    if (block(id).users > 0 || !block(id).key.empty()) sources.push_back(id);
  }
  std::ranges::shuffle(sources, random_);
  if (sources.size() > 3) sources.resize(static_cast<std::size_t>(1 + draw(2)));
  std::vector<BlockMove> moves;
  if (sources.size() > 1 && chance(40)) {  // in a ring
    for (std::size_t i = 0; i < sources.size(); ++i) {
      moves.push_back({sources[i], sources[(i + 1) % sources.size()]});
    }
    if (std::ranges::any_of(sources, [&](BlockId id) { return ledger_.held(id); })) return;
  } else {
    for (const BlockId from : sources) {
      // A source must not be taken as a destination: it is not in use if it is only cached.
      ++block(from).users;
      const auto to = take_block();
      --block(from).users;
      if (to) moves.push_back({from, *to});
    }
    for (const BlockMove& move : moves) --block(move.to).users;
    for (const BlockMove& move : moves) {
      if (std::ranges::find(sources, move.to) != sources.end()) return;
    }
  }
  if (moves.empty()) return;
  counts_.moves += static_cast<std::int64_t>(moves.size());
  MovePlan plan = ledger_.move(++step_, moves);
  const std::vector<Block> before = blocks_;
  for (const BlockMove& move : moves) block(move.from) = {};
  for (const BlockMove& move : moves) {
    block(move.to) = before[static_cast<std::size_t>(move.from)];
    if (!block(move.to).key.empty()) cache_[block(move.to).key] = move.to;
  }
  carry(std::move(plan), moves, nullptr);
}

void RandomEngine::copy() {
  before_put();
  if (requests_.empty()) return;
  Request& request = any_of(requests_).second;
  if (request.blocks.empty()) return;
  BlockId& from = any_of(request.blocks);
  const auto to = take_block();
  if (!to) return;
  ++counts_.copies;
  const std::vector<BlockMove> moves{{from, *to}};
  MovePlan plan = ledger_.copy(++step_, request.id, moves[0]);
  --block(from).users;
  if (request.wants_rows) return carry(std::move(plan), moves, &request);
  EXPECT_TRUE(plan.from.empty());
  from = *to;
}

// What the ledger did, told by rows: they are others from now on, and whoever had the old ones has
// the new ones.
void RandomEngine::carry(MovePlan plan, const std::vector<BlockMove>& moves, Request* only) {
  Put put;
  std::map<RowRef, RowRef> renewed;
  RowRefs belongs = oracle_.belongs;
  std::vector<Slot> from_slots;
  for (const auto& [from, to] : moves) {
    for (Slot offset = 0; offset < kBlock; ++offset) {
      if (!only) at(belongs, from * kBlock + offset) = nullptr;
    }
  }
  for (const auto& [from, to] : moves) {
    for (Slot offset = 0; offset < kBlock; ++offset) {
      RowRef row = at(oracle_.belongs, from * kBlock + offset);
      if (row && row->step > flushed_) {
        put.before.push_back(row);
        row = renewed[row] = oracle_.move(row, plan.step);
        put.after.push_back(row);
        from_slots.push_back(from * kBlock + offset);
      }
      at(belongs, to * kBlock + offset) = row;
    }
  }
  oracle_.belongs = std::move(belongs);
  EXPECT_EQ(plan.from, from_slots);
  for (auto& [id, request] : requests_) {
    if (only && only != &request) continue;
    const std::vector<BlockId> old = request.blocks;
    for (std::size_t i = 0; i < old.size(); ++i) {
      for (const auto& [from, to] : moves) {
        if (old[i] == from) request.blocks[i] = to;
      }
    }
    for (RowRef& row : request.rows) {
      if (const auto found = renewed.find(row); found != renewed.end()) row = found->second;
    }
  }
  put.move = std::move(plan);
  puts_.push_back(std::move(put));
  if (chance(60)) {
    if (chance(50) && most_drafts_ > 0) drain();
    while (!puts_.empty() && is_ready(puts_.front())) do_put();
  }
}

void RandomEngine::do_put() {
  const Put put = std::move(puts_.front());
  puts_.pop_front();
  if (put.move.step == 0) {
    std::vector<std::byte> rows;
    for (const RowRef& row : put.after) {
      const auto bytes = number_row(row->number);
      rows.insert(rows.end(), bytes.begin(), bytes.end());
    }
    fill_rows(reader_, put.fill, rows, kNow);
    for (std::size_t i = 0; i < put.after.size(); ++i) {
      oracle_.put(put.fill.slots.at(i), put.fill.step, put.after[i]);
    }
    return;
  }
  RowRefs moved;
  for (std::size_t i = 0; i < put.before.size(); ++i) {
    const bool there = at(oracle_.buffer, put.move.from.at(i)) == put.before[i];
    moved.push_back(there ? put.after[i] : nullptr);
  }
  for (std::size_t i = 0; i < moved.size(); ++i) {
    oracle_.put(put.move.to.at(i), put.move.step, moved[i]);
  }
  const auto count = std::ranges::count_if(moved, [](const RowRef& row) { return row != nullptr; });
  EXPECT_EQ(move_rows(reader_, put.move, kNow), static_cast<std::size_t>(count));
  counts_.rows_moved += count;
}

// --- the rest
// ---------------------------------------------------------------------------------------

// A careful engine empties its cache too.
void RandomEngine::flush() {
  ledger_.flush();
  flushed_ = step_;
  ++counts_.flushes;
  if (chance(60)) ++weights_;
}

void RandomEngine::forget() {
  if (cache_.empty()) return;
  const BlockId id = any_of(cache_).second;
  if (block(id).users > 0) return;
  ledger_.forget(std::vector{id});
  uncache(id);
  for (Slot slot = id * kBlock; slot < (id + 1) * kBlock; ++slot)
    at(oracle_.belongs, slot) = nullptr;
  ++counts_.forgotten;
}

void RandomEngine::offload() {
  if (cache_.empty()) return;
  const BlockId id = any_of(cache_).second;
  RowOracle::Expected expected{{}, {}, flushed_};
  for (Slot slot = id * kBlock; slot < (id + 1) * kBlock; ++slot) {
    expected.slots.push_back(slot);
    expected.rows.push_back(at(oracle_.belongs, slot));
  }
  read_now(ledger_.block_rows(id), expected);
}

RowOracle::Expected RandomEngine::expect(const Request& request, TokenRange range) const {
  RowOracle::Expected expected{{}, {}, flushed_};
  const auto room = static_cast<std::int64_t>(request.blocks.size()) * kBlock;
  const auto known = static_cast<std::int64_t>(request.rows.size());
  for (std::int64_t p = range.start; p < range.end; ++p) {
    if (p < room) expected.slots.push_back(slot_of(request.blocks, p));
    expected.rows.push_back(p < known && p < room ? at(request.rows, p) : nullptr);
  }
  return expected;
}

void RandomEngine::read_now(const RowPlan& plan, const RowOracle::Expected& expected) {
  const Routes routes =
      done_by(plan.last_step) ? read_rows(reader_, plan, kNow) : read_rows(reader_, plan);
  RowOracle::check(expected, oracle_.states(expected), routes);
  count(routes);
}

void RandomEngine::leave(RowPlan plan, RowOracle::Expected expected) {
  if (reading_ == Reading::at_once) return read_now(plan, expected);
  if (reading_ != Reading::careless) pending_.add(plan);
  std::vector<RowState> states = oracle_.states(expected);
  reads_.push_back({std::move(plan), std::move(expected), std::move(states), std::nullopt});
}

void RandomEngine::collect(std::size_t index) {
  if (!done_by(reads_[index].plan.last_step)) drain();  // which may add others, behind it
  const Read read = std::move(reads_[index]);
  reads_.erase(reads_.begin() + static_cast<std::ptrdiff_t>(index));
  if (reading_ == Reading::careless) return read_now(read.plan, read.expected);
  const Routes routes = pending_.collect(read.plan.request, kNow);
  RowOracle::check(read.expected, read.taken ? *read.taken : oracle_.states(read.expected), routes);
  count(routes);
  for (std::size_t i = 0; i < read.at_end.size(); ++i) {
    // Rows that nobody asked for may still be on their way when others are put in their place.
    if (read.at_end[i] != RowState::present || publish_all_) continue;
    ASSERT_EQ(routes.states()[i], RowState::present) << "a row was lost that was held";
  }
}

void RandomEngine::count(const Routes& routes) {
  counts_.present += static_cast<std::int64_t>(routes.count(RowState::present));
  counts_.missing += static_cast<std::int64_t>(routes.count(RowState::missing));
  counts_.stale += static_cast<std::int64_t>(routes.count(RowState::stale));
  counts_.clobbered += static_cast<std::int64_t>(routes.count(RowState::clobbered));
}

}  // namespace moetap::test
