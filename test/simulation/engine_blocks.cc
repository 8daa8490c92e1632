// A simulated engine's blocks: who gets them, and where they go.
#include <moetap/error.h>
#include <moetap/offload.h>
#include <moetap/read_rows.h>

#include <algorithm>
#include <utility>

#include "test/simulation/engine.h"

namespace moetap::simulation {
namespace {

BlockKey block_key(const std::vector<int>& key) {
  std::string text;
  for (const int part : key) text += static_cast<char>(part);
  return BlockKey(text);
}

}  // namespace

// Whose block it is: the weights, and the tokens up to its end.
std::vector<int> Engine::key_of(const Request& request, std::int64_t end) const {
  std::vector<int> key{weights_};
  key.insert(key.end(), request.tokens.begin(), request.tokens.begin() + end);
  return key;
}

// Rows of other weights must not be found, whatever happens to the cache.
std::vector<int> Engine::store_key(std::vector<int> key) const {
  key.front() = flushes_;
  return key;
}

std::vector<BlockId> Engine::hit(const Request& request) {
  std::vector<BlockId> found;
  for (std::int64_t end = kBlock; end < size(request.tokens); end += kBlock) {
    const auto cached = cache_.find(key_of(request, end));
    if (cached == cache_.end()) break;
    found.push_back(cached->second);
  }
  return found;
}

void Engine::cache(const Request& request, std::int64_t end) {
  for (std::int64_t i = 0; (i + 1) * kBlock <= end; ++i) {
    const BlockId id = request.blocks.at(static_cast<std::size_t>(i));
    std::vector<int> key = key_of(request, (i + 1) * kBlock);
    if (block(id).key.empty() && cache_.emplace(key, id).second) block(id).key = key;
  }
}

void Engine::uncache(BlockId id) {
  cache_.erase(block(id).key);
  block(id).key.clear();
}

// --- who gets a block
// -------------------------------------------------------------------------------

bool Engine::usable(BlockId id) {
  if (block(id).users > 0) return false;
  if (!ledger_.held(id)) return true;
  ++counts_[Event::held_back];
  if (options_.reading != Reading::early) return false;
  reader_.poll();
  std::vector<Read*> touched;
  for (Read& read : reads_) {
    const bool touches = std::ranges::find(read.plan.blocks, id) != read.plan.blocks.end();
    if (!touches || read.taken) continue;
    if (!done_by(read.plan.last_step)) return false;
    touched.push_back(&read);
  }
  pending_.take_early(std::vector{id}, kNow);
  for (Read* read : touched) {
    read->taken = oracle_.states(read->expected);
    ++counts_[Event::taken_early];
  }
  return true;
}

// Any that is not cached, else the one of the cache that was used longest ago.
std::optional<BlockId> Engine::take_block() {
  std::vector<BlockId> free;
  for (int i = 0; i < options_.num_blocks; ++i) {
    const BlockId id(i);
    if (block(id).key.empty() && block(id).users == 0 && usable(id)) free.push_back(id);
  }
  if (free.empty()) {
    for (const auto& [key, id] : cache_) {
      if (block(id).users > 0 || (!free.empty() && block(id).used > block(free[0]).used)) continue;
      if (usable(id)) free.assign(1, id);
    }
  }
  if (free.empty()) return std::nullopt;
  const BlockId id = dice_.any_of(free);
  uncache(id);
  ++block(id).users;
  block(id).used = ++uses_;
  block(id).moved = 0;
  for (Slot slot = first_slot(id, kBlock); slot < first_slot(id, kBlock) + kBlock; ++slot)
    at(oracle_.belongs, slot) = nullptr;
  return id;
}

bool Engine::take_blocks(std::int64_t count, std::vector<BlockId>& taken) {
  while (static_cast<std::int64_t>(taken.size()) < count) {
    if (const auto id = take_block()) {
      taken.push_back(*id);
      continue;
    }
    const auto ready = std::ranges::find_if(
        reads_, [&](const Read& read) { return !read.by_request && done_by(read.plan.last_step); });
    if (options_.reading == Reading::held && ready != reads_.end()) {
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

// Steps that may have to be corrected come first, most of the time: one that is corrected after its
// blocks moved writes where they were.
void Engine::before_put() {
  if (options_.most_drafts > 0 && !(options_.trees && chance(60))) drain();
}

// Some of the prompt comes from elsewhere.
void Engine::fill(Request& request) {
  const auto room = static_cast<std::int64_t>(request.blocks.size()) * kBlock;
  const std::int64_t most = std::min(size(request.tokens) - 1, room) - request.computed;
  if (most <= 0 || (options_.most_drafts > 0 && !in_flight_.empty())) return;
  Work work;
  work.blocks = request.blocks;
  work.positions = {request.computed, request.computed + 1 + draw(most - 1)};
  Put put;
  put.fill = ledger_.fill(++step_, request.id, work.positions);
  ++counts_[Event::fills];
  work.prefill = true;
  set_rows(request, work, step_);
  request.computed = request.reach = request.run->next = work.positions.end;
  if (!request.wants_rows) return;
  for (std::int64_t p = work.positions.start; p < work.positions.end; ++p) {
    RowRef& row = at(work.rows, p - work.positions.start);
    // The request that computed it would not have handed over a row that misses a route.
    while (oracle_.router.missing_layer(row->number) >= 0) row = oracle_.make(step_);
    at(request.rows, p) = at(oracle_.belongs, slot_of(work.blocks, p)) = row;
  }
  put.after = work.rows;
  puts_.push_back(std::move(put));
  while (!puts_.empty() && is_ready(puts_.front()) && chance(70)) do_put();
}

void Engine::move() {
  before_put();
  std::vector<BlockId> sources;
  for (int i = 0; i < options_.num_blocks; ++i) {
    const BlockId id(i);
    if (block(id).users > 0 || !block(id).key.empty()) sources.push_back(id);
  }
  if (options_.trees && !in_flight_.empty() && chance(50)) sources = blocks_of_drafts();
  std::ranges::shuffle(sources, dice_.generator());
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
  counts_[Event::moves] += static_cast<std::int64_t>(moves.size());
  MovePlan plan = ledger_.move(++step_, moves);
  const std::vector<Block> before = blocks_;
  for (const BlockMove& move : moves) block(move.from) = {};
  for (const BlockMove& move : moves) {
    block(move.to) = before[static_cast<std::size_t>(move.from.value())];
    if (!block(move.to).key.empty()) cache_[block(move.to).key] = move.to;
  }
  carry(std::move(plan), moves, nullptr);
}

void Engine::copy() {
  before_put();
  if (requests_.empty()) return;
  Request& request = dice_.any_of(requests_).second;
  if (request.blocks.empty()) return;
  BlockId& from = dice_.any_of(request.blocks);
  const auto to = take_block();
  if (!to) return;
  ++counts_[Event::copies];
  const std::vector<BlockMove> moves{{from, *to}};
  MovePlan plan = ledger_.copy(++step_, request.id, moves[0]);
  --block(from).users;
  if (request.wants_rows) return carry(std::move(plan), moves, &request);
  require(plan.from.empty(), "rows that are not wanted would be copied");
  from = *to;
}

// What the ledger did, told by rows: they are others from now on, and the holder of the old ones
// has the new ones.
void Engine::carry(MovePlan plan, const std::vector<BlockMove>& moves, Request* only) {
  Put put;
  std::map<RowRef, RowRef> renewed;
  RowRefs belongs = oracle_.belongs;
  std::vector<Slot> from_slots;
  for (const auto& [from, to] : moves) {
    for (int offset = 0; offset < kBlock; ++offset) {
      if (!only) at(belongs, first_slot(from, kBlock) + offset) = nullptr;
    }
  }
  for (const auto& [from, to] : moves) {
    for (int offset = 0; offset < kBlock; ++offset) {
      RowRef row = at(oracle_.belongs, first_slot(from, kBlock) + offset);
      if (row && row->step > flushed_) {
        put.before.push_back(row);
        row = renewed[row] = oracle_.move(row, plan.step);
        put.after.push_back(row);
        from_slots.push_back(first_slot(from, kBlock) + offset);
      }
      at(belongs, first_slot(to, kBlock) + offset) = row;
    }
  }
  oracle_.belongs = std::move(belongs);
  require(plan.from == from_slots, "other rows would be moved");
  for (const BlockMove& move : moves) block(move.to).moved = plan.step;
  for (auto& [id, request] : requests_) {
    if (only && only != &request) continue;
    const std::vector<BlockId> old = request.blocks;
    for (std::size_t i = 0; i < old.size(); ++i) {
      for (const auto& [from, to] : moves) {
        if (old[i] != from) continue;
        request.blocks[i] = to;
        std::erase_if(request.covered, [&](const auto& c) { return c.first / kBlock == int(i); });
      }
    }
    for (RowRef& row : request.rows) {
      if (const auto found = renewed.find(row); found != renewed.end()) row = found->second;
    }
  }
  put.move = std::move(plan);
  puts_.push_back(std::move(put));
  if (chance(60)) {
    if (chance(50) && options_.most_drafts > 0) drain();
    while (!puts_.empty() && is_ready(puts_.front())) do_put();
  }
}

void Engine::do_put() {
  const Put put = std::move(puts_.front());
  puts_.pop_front();
  const auto do_it = [&] { put.move.step == 0 ? put_filled(put) : put_moved(put); };
  const bool lent = std::ranges::any_of(views_, [](const View& v) { return !v.view.owned(); });
  if (lent && !(put.move.step == 0 ? put.fill.slots : put.move.from).empty()) {
    require_refusal<StateError>("H25: a put while rows are lent", do_it);
  }
  drop_views();
  do_it();
}

void Engine::put_filled(const Put& put) {
  std::vector<std::byte> rows;
  for (const RowRef& row : put.after) {
    const auto bytes = oracle_.router.row(row->number);
    rows.insert(rows.end(), bytes.begin(), bytes.end());
  }
  fill_rows(reader_, put.fill, rows, kNow);
  for (std::size_t i = 0; i < put.after.size(); ++i) {
    oracle_.put(put.fill.slots.at(i), put.fill.step, put.after[i]);
  }
}

void Engine::put_moved(const Put& put) {
  const std::size_t count = move_rows(reader_, put.move, kNow);
  RowRefs moved;
  for (std::size_t i = 0; i < put.before.size(); ++i) {
    // Another one than the ledger believes, if it is of a draft whose step began elsewhere.
    RowRef row = oracle_.found(put.move.from.at(i), put.before[i]->step);
    if (row != nullptr) {
      row = row == put.before[i] ? put.after[i] : oracle_.move(row, put.move.step);
    }
    moved.push_back(row);
  }
  for (std::size_t i = 0; i < moved.size(); ++i) {
    oracle_.put(put.move.to.at(i), put.move.step, moved[i]);
  }
  const auto right = std::ranges::count_if(moved, [](const RowRef& row) { return row != nullptr; });
  require(count == static_cast<std::size_t>(right), "{} rows were moved, not {}", count, right);
  counts_[Event::rows_moved] += right;
}

// --- the rest
// ---------------------------------------------------------------------------------------

// A careful engine empties its cache too.
void Engine::flush() {
  ledger_.flush();
  flushed_ = step_;
  ++flushes_;
  ++counts_[Event::flushes];
  if (chance(60)) ++weights_;
}

void Engine::forget() {
  if (cache_.empty()) return;
  const BlockId id = dice_.any_of(cache_).second;
  if (block(id).users > 0) return;
  ledger_.forget(std::vector{id});
  uncache(id);
  for (Slot slot = first_slot(id, kBlock); slot < first_slot(id, kBlock) + kBlock; ++slot)
    at(oracle_.belongs, slot) = nullptr;
  ++counts_[Event::forgotten];
}

// Rows of a block that is cached go to the store, as its keys and values do.
void Engine::offload() {
  if (cache_.empty()) return;
  const BlockId id = dice_.any_of(cache_).second;
  const Oracle::Expected expected = expect_block(id);
  const RowPlan plan = ledger_.block_rows(id);
  read_now(plan, expected);
  if (store_ == nullptr || !done_by(plan.last_step)) return;
  const auto states = oracle_.states(expected);
  const bool right =
      std::ranges::all_of(states, [](RowState state) { return state == RowState::present; });
  const std::vector<int> key = store_key(block(id).key);
  const bool done = store_block(*store_, block_key(key), ledger_, reader_, id, kNow);
  require(done == right, "a block was {}stored", done ? "" : "not ");
  if (done && stored_->emplace(key, expected.rows).second) ++counts_[Event::stored];
}

// Some blocks of the prompt come from the store, with the rows that are there.
void Engine::load(Request& request) {
  const auto room = static_cast<std::int64_t>(request.blocks.size());
  const std::int64_t first = request.computed / kBlock;
  const std::int64_t most = std::min((size(request.tokens) - 1) / kBlock, room) - first;
  if (most <= 0 || request.computed % kBlock != 0 ||
      (options_.most_drafts > 0 && !in_flight_.empty())) {
    return;
  }
  std::vector<BlockKey> keys;
  Work work;
  work.blocks = request.blocks;
  work.positions = {request.computed, request.computed + (1 + draw(most - 1)) * kBlock};
  work.prefill = true;
  set_rows(request, work, ++step_);
  RowRefs rows = work.rows;
  std::int64_t right = 0;
  for (std::int64_t p = work.positions.start; p < work.positions.end; p += kBlock) {
    const std::vector<int> key = store_key(key_of(request, p + kBlock));
    keys.push_back(block_key(key));
    const auto found = stored_->find(key);
    right += found != stored_->end();
    for (std::int64_t i = 0; i < kBlock; ++i) {
      RowRef& row = at(rows, p - work.positions.start + i);
      if (found == stored_->end()) {
        row = nullptr;
        continue;
      }
      const RowRef known = std::make_shared<Row>(Row{step_, at(found->second, i)->number, step_});
      row = known;
      if (request.wants_rows)
        at(request.rows, p + i) = at(oracle_.belongs, slot_of(work.blocks, p + i)) = known;
    }
  }
  drop_views();
  request.computed = request.reach = request.run->next = work.positions.end;
  std::int64_t found = 0;
  try {
    found =
        load_blocks(*store_, keys, ledger_, reader_, step_, request.id, work.positions.start, kNow);
  } catch (const TimeoutError&) {  // of a step in flight; all of them are missing now
    ++counts_[Event::waits_in_vain];
    return;
  }
  ++counts_[Event::loaded];
  if (!request.wants_rows) return;
  require(found == right, "{} of {} blocks were loaded, not {}", found, keys.size(), right);
  for (std::int64_t p = work.positions.start; p < work.positions.end; ++p) {
    oracle_.put(slot_of(work.blocks, p), step_, at(rows, p - work.positions.start));
  }
}

}  // namespace moetap::simulation
