#include "random_engine.h"

#include <algorithm>
#include <utility>

namespace moetap::test {

RandomEngine::RandomEngine(std::uint64_t seed, Counts& counts)
    : random_(seed),
      counts_(counts),
      num_blocks_(static_cast<int>(10 + draw(14))),
      depth_(static_cast<int>(1 + draw(3))),
      most_drafts_(static_cast<int>(chance(60) ? 1 + draw(2) : 0)),
      reading_(static_cast<Reading>(draw(3))),
      publish_all_(chance(50)),
      oracle_(std::int64_t{num_blocks_} * kBlock),
      ledger_(num_blocks_, kBlock),
      memory_(new SlotMemory(ledger_.num_slots())),
      reader_(std::unique_ptr<SlotReadTransport>(memory_)),
      pending_(ledger_, reader_),
      blocks_(static_cast<std::size_t>(num_blocks_)) {}

void RandomEngine::run(int ticks) {
  for (int i = 0; i < ticks && !testing::Test::HasFailure(); ++i) tick();
  drain();
  while (!puts_.empty()) do_put();
  while (!requests_.empty()) abort(requests_.begin()->second);
  while (!reads_.empty()) collect(0);
  EXPECT_EQ(ledger_.num_wanting(), 0);
  EXPECT_EQ(pending_.size(), 0u);
  for (BlockId id = 0; id < num_blocks_; ++id) EXPECT_FALSE(ledger_.held(id));
}

void RandomEngine::tick() {
  if (requests_.size() < 5 && chance(60)) arrive();
  for (auto& [id, request] : requests_) {
    if (!request.run && chance(50)) place(request, true);
  }
  if (chance(10)) move();
  if (chance(6)) copy();
  if (chance(3)) flush();
  if (chance(5)) forget();
  if (chance(10)) offload();
  schedule();
  while (static_cast<int>(in_flight_.size()) >= depth_ || (!in_flight_.empty() && chance(30))) {
    land();
  }
  while (!puts_.empty() && is_ready(puts_.front()) && chance(60)) do_put();
  for (const auto& [id, request] : requests_) {
    if (request.wants_rows && chance(15)) ask(request);
  }
  if (!requests_.empty() && chance(4)) abort(any_of(requests_).second);
  if (!reads_.empty() && chance(50)) {
    collect(static_cast<std::size_t>(draw(static_cast<std::int64_t>(reads_.size()) - 1)));
  }
}

// --- requests
// ---------------------------------------------------------------------------------------

// Few tokens and few lengths, so that many requests begin alike.
void RandomEngine::arrive() {
  Request request;
  request.id = ++requests_so_far_;
  const std::int64_t prompt = 1 + draw(17);
  for (std::int64_t i = 0; i < prompt; ++i) {
    request.tokens.push_back(i < 12 && chance(97) ? 0 : static_cast<int>(draw(1)));
  }
  request.most = prompt + 1 + draw(12);
  request.start = chance(80) ? 0 : draw(prompt);
  request.wants_rows = chance(85);
  if (place(request, false)) requests_[request.id] = std::move(request);
}

bool RandomEngine::place(Request& request, bool resumed) {
  std::vector<BlockId> blocks = hit(request);
  const auto cached = static_cast<std::int64_t>(blocks.size()) * kBlock;
  for (const BlockId id : blocks) ++block(id).users;
  std::vector<BlockId> fresh;
  if (!take_blocks(draw((size(request.tokens) - cached + kBlock - 1) / kBlock), fresh)) {
    for (const BlockId id : blocks) --block(id).users;
    return false;
  }
  blocks.insert(blocks.end(), fresh.begin(), fresh.end());
  request.rows.clear();
  std::int64_t known = cached;  // of the cached positions, from the front
  for (std::int64_t p = 0; p < cached; ++p) {
    const RowRef& row = at(oracle_.belongs, slot_of(blocks, p));
    if (row == nullptr || row->step <= flushed_) known = std::min(known, p);
    request.rows.push_back(request.wants_rows ? row : nullptr);
  }
  EXPECT_EQ(ledger_.cached_rows({blocks, cached}), known);
  if (resumed) {
    ledger_.resume(request.id, {blocks, cached});
  } else {
    ledger_.admit(
        {request.id, size(request.tokens), {blocks, cached}, request.wants_rows, request.start});
  }
  counts_.hits += cached;
  request.blocks = std::move(blocks);
  request.run = std::make_shared<Run>(Run{cached, size(request.tokens), false});
  request.computed = cached;
  if (chance(15)) load(request);
  return true;
}

void RandomEngine::preempt(Request& request) {
  ledger_.preempt(request.id);
  ++counts_.preemptions;
  request.run->over = true;
  request.run = nullptr;
  for (const BlockId id : request.blocks) --block(id).users;
  request.blocks.clear();
  request.rows.clear();
  request.computed = 0;
}

void RandomEngine::finish(Request& request) {
  const TokenRange range{request.start,
                         request.wants_rows ? size(request.tokens) - 1 : request.start};
  RowOracle::Expected expected = expect(request, range);
  const RowPlan plan = ledger_.finish(request.id, size(request.tokens));
  ASSERT_EQ(plan.range, range);
  ++counts_.finished;
  end(request);
  leave(plan, std::move(expected));
}

void RandomEngine::abort(Request& request) {
  const std::int64_t end_of_rows = std::min(size(request.tokens) - 1, request.computed);
  const TokenRange range{request.start,
                         std::max(request.start, request.wants_rows ? end_of_rows : 0)};
  RowOracle::Expected expected = expect(request, range);
  const RowPlan plan = ledger_.abort(request.id);
  ASSERT_EQ(plan.range, range);
  ++counts_.aborts;
  end(request);
  leave(plan, std::move(expected));
}

void RandomEngine::end(Request& request) {
  if (request.run) request.run->over = true;
  for (const BlockId id : request.blocks) --block(id).users;
  requests_.erase(request.id);
}

void RandomEngine::ask(const Request& request) {
  const std::int64_t most = size(request.tokens) - 1;
  const std::int64_t start = draw(most);
  const TokenRange range{start, std::max(start, std::min(most, request.computed))};
  const RowPlan plan = ledger_.rows_since(request.id, start);
  ASSERT_EQ(plan.range, range);
  read_now(plan, expect(request, range));
}

// --- steps
// ------------------------------------------------------------------------------------------

void RandomEngine::schedule() {
  InFlight step;
  step.step = step_ + 1;
  scheduled_.clear();
  for (auto& [id, request] : requests_) {
    if (!request.run || chance(15)) continue;
    Work work = next_work(request);
    std::vector<BlockId> fresh;
    if (work.positions.size() == 0 || !give_blocks(request, work.positions.end, fresh)) continue;
    for (const BlockId fresh_id : fresh) request.blocks.push_back(fresh_id);
    ledger_.schedule(step.step, id, work.positions, fresh);
    work.blocks = request.blocks;
    set_rows(request, work, step.step);
    request.computed = work.positions.end;
    if (work.prefill) cache(request, request.computed);
    scheduled_.insert(id);
    step.work.push_back(std::move(work));
  }
  if (step.work.empty()) return;
  step_ = step.step;
  ++counts_.steps;
  in_flight_.push_back(std::move(step));
}

// Also while the worker has not sampled the tokens yet.
RandomEngine::Work RandomEngine::next_work(const Request& request) {
  Work work;
  work.request = request.id;
  work.run = request.run;
  work.wants_rows = request.wants_rows;
  work.prefill = request.computed < request.run->prefill;
  std::int64_t tokens = 0;
  if (work.prefill) {
    tokens = 1 + draw(std::min<std::int64_t>(7, request.run->prefill - request.computed) - 1);
  } else if (request.computed < request.most - 1) {
    tokens = 1 + draw(most_drafts_);
  }
  work.positions = {request.computed, request.computed + tokens};
  return work;
}

// Preempts others who are not in this step yet, if it must.
bool RandomEngine::give_blocks(Request& request, std::int64_t end, std::vector<BlockId>& fresh) {
  const auto have = static_cast<std::int64_t>(request.blocks.size());
  const std::int64_t more = std::max<std::int64_t>(0, (end + kBlock - 1) / kBlock - have);
  while (!take_blocks(more, fresh)) {
    const auto victim = std::find_if(requests_.rbegin(), requests_.rend(), [&](const auto& other) {
      return other.second.run && other.first != request.id && !scheduled_.contains(other.first);
    });
    if (victim == requests_.rend()) return false;
    preempt(victim->second);
  }
  return true;
}

void RandomEngine::set_rows(Request& request, Work& work, Step step) {
  if (static_cast<std::int64_t>(request.rows.size()) < work.positions.end) {
    request.rows.resize(static_cast<std::size_t>(work.positions.end));
  }
  work.rows.clear();
  for (std::int64_t p = work.positions.start; p < work.positions.end; ++p) {
    work.rows.push_back(oracle_.make(step));
    const RowRef known = request.wants_rows ? work.rows.back() : nullptr;
    at(request.rows, p) = known;
    at(oracle_.belongs, slot_of(work.blocks, p)) = known;
  }
}

void RandomEngine::land() {
  InFlight step = std::move(in_flight_.front());
  in_flight_.pop_front();
  const bool failed = chance(5);
  bool published = publish_all_;
  std::vector<std::pair<Slot, std::uint32_t>> rows;
  std::vector<Slot> slots;
  for (Work& work : step.work) {
    run_work(work, step.step);
    if (!work.wants_rows && !publish_all_) continue;
    published = true;
    for (std::int64_t p = work.positions.start; p < work.positions.end; ++p) {
      const RowRef& row = at(work.rows, p - work.positions.start);
      slots.push_back(slot_of(work.blocks, p));
      rows.emplace_back(slots.back(), row->number);
      at(oracle_.buffer, slots.back()) = failed ? nullptr : row;
    }
  }
  if (published && failed) memory_->fail(step.step, slots);
  if (published && !failed) memory_->publish(step.step, rows);
  if (published && failed) ++counts_.failed_steps;
  for (const Work& work : step.work) output(work);
}

void RandomEngine::run_work(Work& work, Step step) {
  Run& run = *work.run;
  if (work.prefill) {
    run.next = work.positions.end;
    return;
  }
  if (run.over && work.positions.start != run.next) {  // its scheduler was not told any more
    work.positions = {run.next, run.next + work.positions.size()};
    for (RowRef& row : work.rows) row = oracle_.make(step);
  }
  ASSERT_EQ(work.positions.start, run.next);
  work.accepted = draw(work.positions.size() - 1);
  run.next += 1 + work.accepted;
}

void RandomEngine::output(const Work& work) {
  const bool samples = !work.prefill || work.positions.end == work.run->prefill;
  if (work.run->over || !samples) return;
  Request& request = requests_.at(work.request);
  const std::int64_t tokens = std::min(1 + work.accepted, request.most - size(request.tokens));
  for (std::int64_t i = 0; i < tokens; ++i) request.tokens.push_back(static_cast<int>(draw(1)));
  if (!work.prefill) counts_.rejected += work.positions.size() - 1 - work.accepted;
  ledger_.accept(request.id, size(request.tokens));
  if (size(request.tokens) == request.most) return finish(request);
  correct(request);
  cache(request, size(request.tokens) - 1);
}

// The step of the request's that runs next begins where this one really ended.
void RandomEngine::correct(Request& request) {
  request.computed = request.run->next;
  for (InFlight& step : in_flight_) {
    for (Work& work : step.work) {
      if (work.run != request.run) continue;
      const std::int64_t tokens = work.positions.size();
      if (request.computed == request.run->next && work.positions.start != request.run->next) {
        work.positions = {request.run->next, request.run->next + tokens};
        ledger_.schedule(step.step, request.id, work.positions);
        set_rows(request, work, step.step);
        ++counts_.corrected;
      }
      request.computed += tokens;
    }
  }
}

void RandomEngine::drain() {
  while (!in_flight_.empty()) land();
}

}  // namespace moetap::test
