// Rows that move, or come from elsewhere.
#include <moetap/error.h>

#include <fmt/format.h>

#include <algorithm>

#include "lib/internal/injection.h"
#include "lib/internal/number_format.h"
#include "lib/ledger/ledger_state.h"

namespace moetap {

using detail::BlockClaim;
using detail::RowStamp;

// Sources must exist and be distinct, and so must destinations, which must not be held.
void Ledger::State::check_moves(std::span<const BlockMove> moves) {
  for (const auto end : {&BlockMove::from, &BlockMove::to}) {
    checked.clear();
    for (const BlockMove& move : moves) checked.push_back(move.*end);
    book.require_distinct(checked);
  }
  book.require_free(checked);
}

// Gives the destinations away and returns which rows to move. A stale row is not moved: with its
// new step it would look present.
MovePlan Ledger::State::carry(Step step, std::span<const BlockMove> moves) {
  const int size = book.block_size();
  MovePlan plan;
  plan.step = step;
  std::vector<RowStamp> stamps;  // of the destinations: one may be a source too
  stamps.reserve(moves.size() * static_cast<std::size_t>(size));
  for (const auto& [from, to] : moves) {
    plan.last_step = std::max({plan.last_step, book.last_write(from), book.last_write(to)});
    for (int offset = 0; offset < size; ++offset) {
      const RowStamp stamp = book.stamps(from)[offset];
      const bool moves_along = stamp.step() > flushed;
      stamps.push_back(moves_along ? stamp.moved(step) : stamp);
      if (!moves_along) continue;
      plan.from.push_back(first_slot(from, size) + offset);
      plan.windows.push_back({stamp.step(), stamp.step()});
      plan.to.push_back(first_slot(to, size) + offset);
    }
  }
  const RowStamp* stamp = stamps.data();
  std::vector<bool> hits;
  for (const BlockMove& move : moves) hits.push_back(book.hit(move.from));
  for (std::size_t i = 0; i < moves.size(); ++i) {
    const BlockMove& move = moves[i];
    book.give(move.to);
    book.set_hit(move.to, hits[i]);
    book.set_moved_in(move.to, step);
    for (int offset = 0; offset < size; ++offset) book.set(move.to, offset, *stamp++);
  }
  last = last_put = step;
  return plan;
}

// Keeps the steps of rows that may still be withdrawn: their stamps no longer have them after the
// move. Rows that are covered do not move.
void Ledger::State::keep_origins(Request& request, std::size_t index) const {
  const BlockClaim& claim = request.claims[index];
  const std::int64_t begin = static_cast<std::int64_t>(index) * book.block_size();
  forget_covered(request, {begin, begin + book.block_size()});
  const auto stamps = book.stamps(claim.block);
  for (int offset = 0; offset < book.block_size(); ++offset) {
    const Step step = stamps[offset].step();
    const bool stands =
        begin + offset < request.num_tokens - 1 && in_flight(request, step) == nullptr;
    if (stands || stamps[offset].is_put() || step <= flushed) continue;
    request.origins.push_back({begin + offset, step});
  }
}

// Other rows belong there now.
void Ledger::State::forget_origins(Request& request, TokenRange positions) {
  if (MOETAP_OFF("H30 rows over drafts that moved")) return;
  std::erase_if(request.origins, [positions](const Request::Origin& origin) {
    return origin.position >= positions.start && origin.position < positions.end;
  });
}

MovePlan Ledger::move(Step step, std::span<const BlockMove> moves) {
  State& s = *state_;
  s.check_own_step(step, "move()");
  s.check_moves(moves);
  std::unordered_map<BlockId, std::pair<BlockClaim, BlockId>> sources;
  for (const auto& [from, to] : moves) sources[from] = {s.book.share(from), to};
  const auto is_moved = [&sources](const BlockClaim& claim) {
    const auto moved = sources.find(claim.block);
    return moved != sources.end() && moved->second.first.generation == claim.generation;
  };
  for (auto& [id, request] : s.requests) {
    for (std::size_t i = 0; i < request.claims.size(); ++i) {
      if (is_moved(request.claims[i])) s.keep_origins(request, i);
    }
  }
  MovePlan plan = s.carry(step, moves);

  for (auto& [id, request] : s.requests) {
    for (BlockClaim& claim : request.claims) {
      if (MOETAP_OFF("H8 requests follow their blocks") || !is_moved(claim)) continue;
      const auto moved = sources.find(claim.block);
      const bool owned = claim.owned;
      claim = s.book.share(moved->second.second);
      claim.owned = owned;
    }
  }
  for (const auto& [from, source] : sources) {
    if (s.book.stands(source.first)) s.book.give(from);  // else it is a destination too
  }
  return plan;
}

MovePlan Ledger::copy(Step step, RequestId request, BlockMove move) {
  State& s = *state_;
  auto& r = s.running(request, "copy()");
  s.check_own_step(step, "copy()");
  s.check_moves({&move, 1});
  if (!r.wants_rows) {
    s.book.give(move.to);
    s.last = s.last_put = step;
    return {.step = step, .from = {}, .windows = {}, .to = {}, .last_step = 0};
  }
  const auto claim = std::ranges::find_if(r.claims, [&](const BlockClaim& one) {
    return one.block == move.from && s.book.stands(one);  // it may have lost it, and got it again
  });
  const bool has_it = claim != r.claims.end();
  if (!has_it || move.from == move.to) {
    throw StateError(fmt::format("copy() of block {} to {} for request {}, which {}", move.from,
                                 move.to, request,
                                 has_it ? "is the same block" : "does not have it"));
  }
  s.keep_origins(r, static_cast<std::size_t>(claim - r.claims.begin()));
  MovePlan plan = s.carry(step, {&move, 1});
  s.book.set_hit(move.to, false);
  *claim = s.book.share(move.to);
  claim->owned = true;
  return plan;
}

void Ledger::forget(std::span<const BlockId> blocks) {
  state_->book.require_distinct(blocks);
  for (const BlockId block : blocks) state_->book.give(block);
}

void Ledger::flush() {
  if (!MOETAP_OFF("H29 rows of old weights")) state_->flushed = state_->last;
}

FillPlan Ledger::fill(Step step, RequestId request, TokenRange positions) {
  State& s = *state_;
  auto& r = s.running(request, "fill()");
  s.check_own_step(step, "fill()");
  FillPlan plan;
  plan.step = step;
  if (r.wants_rows) {
    s.check_positions(positions, r.claims.size());
    State::check_known(r, request, positions, "fill()");
    s.check_writable(r, positions, step);
    plan.slots.reserve(static_cast<std::size_t>(positions.size()));
    s.for_each_block(positions, [&](std::size_t index, int first, int end) {
      const BlockId block = r.claims[index].block;
      plan.last_step = std::max(plan.last_step, s.book.last_write(block));
      for (int offset = first; offset < end; ++offset) {
        plan.slots.push_back(first_slot(block, block_size()) + offset);
        s.book.set(block, offset, RowStamp::put(step));
      }
    });
    r.computed = std::max(r.computed, positions.end);
    State::forget_origins(r, positions);
  }
  s.last = s.last_put = step;
  return plan;
}

}  // namespace moetap
