// What a simulated engine makes of drafts that form a tree, and of what a preempted run sampled.
#include <moetap/error.h>

#include <algorithm>
#include <utility>

#include "test/simulation/engine.h"

namespace moetap::simulation {

// A way down any tree, whose nodes come after their parents.
std::vector<std::int64_t> Engine::draw_path(std::int64_t tokens) {
  std::vector<std::int64_t> path{0};
  while (path.back() < tokens - 1 && chance(70)) {
    path.push_back(path.back() + 1 + draw(tokens - 2 - path.back()));
  }
  return path;
}

// The tokens that stand are told, and their keys and values move to where they stand.
void Engine::accept_tree(Request& request, const Work& work, Step step) {
  const std::int64_t start = work.positions.start;
  const std::int64_t end = std::min(size(request.tokens) - 1, work.positions.end);
  const std::int64_t count = request.wants_rows && work.told ? end - start : 0;
  if (count > 1 && chance(20)) {
    require_refusal<StateError>("H30: drafts that stand, of which it was not told",
                                [&] { ledger_.accept(step, request.id, size(request.tokens)); });
    ++counts_[Event::refused_calls];
  }
  if (moved_as_ == 0 || chance(30)) moved_as_ = ++step_;
  MovePlan plan = ledger_.accept(step, request.id, size(request.tokens), work.path, moved_as_);
  Put put;
  std::vector<Slot> from;
  RowRefs stand;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t computed_at = start + work.path.at(static_cast<std::size_t>(i));
    RowRef row = row_of(request, computed_at, step);
    if (computed_at != start + i && row && row->step > flushed_) {
      put.before.push_back(row);
      row = oracle_.move(row, plan.step);
      put.after.push_back(row);
      from.push_back(slot_of(request.blocks, computed_at));
    }
    stand.push_back(row);
  }
  for (std::int64_t p = start; request.wants_rows && p < work.positions.end; ++p) {
    const bool stays =
        p - start < count && work.path.at(static_cast<std::size_t>(p - start)) == p - start;
    if (!stays) uncover(request, p, step);
    if (stays || p - start >= count) continue;
    at(request.rows, p) = at(oracle_.belongs, slot_of(request.blocks, p)) = at(stand, p - start);
  }
  require(plan.from == from, "{} rows of request {} would be moved, not {}", plan.from.size(),
          request.id, from.size());
  if (options_.per_request) return accept_in_worker(request, work, step);
  if (from.empty()) return;
  counts_[Event::tree_moves] += static_cast<std::int64_t>(from.size());
  put.move = std::move(plan);
  if (!puts_.empty() && puts_.back().move.step == put.move.step) {
    Put& last = puts_.back();
    append(trace_, last.move, put.move);
    last.before.insert(last.before.end(), put.before.begin(), put.before.end());
    last.after.insert(last.after.end(), put.after.begin(), put.after.end());
  } else {
    puts_.push_back(std::move(put));
  }
}

// A worker that keeps rows by request knows where its steps begin. Of a tree that was not declared
// it sees no more than where the next step begins, and at the request's end how many rows are
// wanted.
void Engine::accept_in_worker(Request& request, const Work& work, Step step) {
  const std::int64_t start = work.positions.start;
  const std::int64_t tokens = size(request.tokens);
  const std::int64_t count = std::min(tokens - 1, work.positions.end) - start;
  const bool goes_on = std::ranges::any_of(in_flight_, [&](const InFlight& later) {
    return std::ranges::find(later.work, work.run, &Work::run) != later.work.end();
  });
  const bool all_stand = std::ssize(work.path) == work.positions.size();
  const bool told =
      options_.declares ? chance(85) : all_stand && (goes_on || tokens > work.positions.end);
  for (std::int64_t i = 0; request.wants_rows && i < count; ++i) {
    const std::int64_t token = work.path.at(static_cast<std::size_t>(i));
    at(request.rows, start + i) = told || i == 0 ? at(work.rows, token) : nullptr;
    counts_[Event::tree_moves] += told && token != i;
  }
  if (!options_.declares || !told) return;
  const auto accept = [this, step, id = request.id, tokens, path = work.path] {
    worker_.accept(step, id, tokens, path);
  };
  options_.accepts_late ? tell_worker(accept) : accept();
}

// The next step to land has run: where the ones after it begin is known, and nothing else of it.
// Blocks may move before and after the first step that is computed over its drafts.
void Engine::look_ahead() {
  const bool moves = !options_.per_request && chance(30);
  if (moves) move();
  if (in_flight_.empty() || in_flight_.front().begun) return;
  begin(in_flight_.front());
  for (const Work& work : in_flight_.front().work) {
    if (!work.run->over) correct(requests_.at(work.request), false);
  }
  if (!moves) return;
  if (static_cast<int>(in_flight_.size()) < options_.depth) schedule();
  move();
}

// Where drafts of the next step to land lie.
std::vector<BlockId> Engine::blocks_of_drafts() {
  std::set<BlockId> found;
  for (const Work& work : in_flight_.front().work) {
    if (work.run->over || work.prefill) continue;
    const Request& request = requests_.at(work.request);
    found.insert(request.blocks.at(static_cast<std::size_t>((work.positions.end - 1) / kBlock)));
  }
  return {found.begin(), found.end()};
}

bool Engine::moved_since(const Request& request, TokenRange positions, Step step) {
  for (std::int64_t p = positions.start; p < positions.end; ++p) {
    if (block(request.blocks.at(static_cast<std::size_t>(p / kBlock))).moved > step) return true;
  }
  return false;
}

// The step does not begin where the ledger believes: it knows none of its rows until it is told.
void Engine::lose_rows(Request& request, TokenRange positions, Step step) {
  for (std::int64_t p = positions.start; p < positions.end; ++p) uncover(request, p, step);
}

// A later step may have a row there already. One that moved while its step is in flight is not
// kept.
void Engine::cover(Request& request, std::int64_t position, const RowRef& row) {
  RowRef& top = at(request.rows, position);
  if (top && top->step > row->step) {
    request.covered.emplace_back(position, row);
    return;
  }
  const bool moved =
      top && top->step != top->computed &&
      std::ranges::find(in_flight_, top->computed, &InFlight::step) != in_flight_.end();
  if (top && !moved) request.covered.emplace_back(position, top);
  top = at(oracle_.belongs, slot_of(request.blocks, position)) = row;
}

// The step has no row there any more, and what was under it has.
void Engine::uncover(Request& request, std::int64_t position, Step step) {
  if (position >= std::ssize(request.rows)) return;
  RowRef& top = at(request.rows, position);
  const bool on_top = top && top->computed == step;
  auto newest = request.covered.end();
  for (auto it = request.covered.begin(); it != request.covered.end(); ++it) {
    if (it->first != position || (!on_top && it->second->computed != step)) continue;
    if (newest == request.covered.end() || it->second->step > newest->second->step) newest = it;
  }
  const bool found = newest != request.covered.end();
  if (on_top) {
    const RowRef under = found ? newest->second : nullptr;
    RowRef& belongs = at(oracle_.belongs, slot_of(request.blocks, position));
    if (belongs == top) belongs = under;
    top = under;
    counts_[Event::uncovered] += found;
  }
  if (found) request.covered.erase(newest);
}

RowRef Engine::row_of(const Request& request, std::int64_t position, Step step) {
  const RowRef& top = at(request.rows, position);
  if (top && top->computed == step) return top;
  for (const auto& [covered_at, row] : request.covered) {
    if (covered_at == position && row->computed == step) return row;
  }
  return nullptr;
}

// Steps in flight begin after what stands now, whatever was reported.
void Engine::settle_guesses(Request& request) {
  const std::int64_t end = std::min(size(request.tokens) - 1, std::ssize(request.rows));
  request.known = std::max(request.known, size(request.tokens) - 1);
  for (const InFlight& step : in_flight_) {
    const auto work = std::ranges::find(step.work, request.run, &Work::run);
    if (work == step.work.end() || work->prefill) continue;
    for (std::int64_t p = 0; p < end; ++p) uncover(request, p, step.step);
  }
}

// Its client keeps what it sampled, and so the rows that it came of.
void Engine::keep(Request& request) {
  const bool sampled = request.wants_rows && size(request.tokens) > request.run->prefill;
  const std::int64_t end = std::min(size(request.tokens) - 1, request.known);
  const TokenRange range{request.start, sampled ? std::max(request.start, end) : request.start};
  const Oracle::Expected expected = expect(request, range);
  const RowPlan plan = ledger_.preempt_keeping(request.id);
  require(plan.range == range, "request {} keeps the rows [{}, {}), not [{}, {})", request.id,
          plan.range.start, plan.range.end, range.start, range.end);
  request.keeps = true;
  if (range.size() == 0) return;
  Routes kept = read_now(plan, expected);
  ++counts_[Event::kept];
  if (request.got && request.got->range().end >= range.start) {
    request.got->append(kept.split(request.got->range().end).second);
  } else {
    request.got.reset();
  }
  request.before ? request.before->append(kept) : void(request.before = std::move(kept));
  request.start = request.kept = range.end;
}

// A step of a run that was preempted has sampled one more token.
void Engine::output_late(const Work& work, Step step) {
  const auto found = requests_.find(work.request);
  if (found == requests_.end() || found->second.run || options_.per_request) return;
  Request& request = found->second;
  const std::int64_t next = work.prefill ? work.positions.end : work.positions.start + 1;
  if (next != size(request.tokens) || chance(30)) return;
  request.tokens.push_back(static_cast<int>(draw(1)));
  ledger_.accept(step, request.id, size(request.tokens));
  ++counts_[Event::sampled_late];
  if (request.keeps && request.wants_rows) request.unkept = size(request.tokens) - 1;
  if (size(request.tokens) == request.most) finish(request);
}

}  // namespace moetap::simulation
