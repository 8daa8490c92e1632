// Settles which of a step's tokens were accepted, and at which positions.
#include <moetap/error.h>

#include <fmt/format.h>

#include <algorithm>

#include "lib/internal/accepted_tokens.h"
#include "lib/internal/injection.h"
#include "lib/internal/number_format.h"
#include "lib/ledger/ledger_state.h"

namespace moetap {

using detail::BlockClaim;
using detail::RowStamp;

// The effect of accept() on the rows of one step, computed before anything is changed.
struct Ledger::State::Settlement {
  MovePlan plan;
  std::vector<RowStamp> stamps;  // of the step's first positions
};

Ledger::State::Request& Ledger::State::accepting(Step step, RequestId id, std::int64_t num_tokens,
                                                 const char* call) {
  Request& request = find(id);
  check_step(step, call);
  if (num_tokens < request.num_tokens) {
    throw ArgumentError(fmt::format(
        "{} of step {} with {} tokens of request {}, which is known to have {}; give all that it "
        "has now, its prompt too, {} or more",
        call, step, num_tokens, id, request.num_tokens, request.num_tokens));
  }
  return request;
}

// Rows after the end that steps up to this one computed belong to rejected tokens (H17).
void Ledger::State::reject(Request& request, Step step) {
  const std::int64_t first = std::max<std::int64_t>(request.num_tokens - 1, 0);
  const auto room = static_cast<std::int64_t>(request.claims.size()) * book.block_size();
  const std::int64_t end = std::max(first, std::min(request.computed, room));
  for_each_block({first, end}, [&](std::size_t index, int from, int to) {
    const BlockClaim& claim = request.claims[index];
    if (!claim.owned || !book.stands(claim)) return;
    for (int offset = from; offset < to; ++offset) {
      const RowStamp stamp = book.stamps(claim.block)[offset];
      if (!stamp.is_put() && stamp.step() <= step) book.set(claim.block, offset, {});
    }
  });
  std::erase_if(request.covered, [&](const Request::Covered& row) {
    return row.position >= first && !row.stamp.is_put() && row.stamp.step() <= step;
  });
  for (const Request::Origin& origin : request.origins) {
    if (origin.position < first || origin.position >= end || origin.step > step) continue;
    const auto place = own_place(request, origin.position);
    if (place && stamp_at(*place).is_put()) {
      book.set(place->block, place->offset, {});
    }
  }
  std::erase_if(request.origins,
                [step](const Request::Origin& origin) { return origin.step <= step; });
}

// With the steps in flight: drafts that were rejected are not computed any more.
std::int64_t Ledger::State::computed_with(const Request& request) {
  std::int64_t computed = request.num_tokens - 1;
  for (const Request::InFlight& flight : request.in_flight) {
    computed = std::max(computed, flight.positions.end);
  }
  return computed;
}

// Applies the number of tokens, once it is known which rows are theirs.
void Ledger::State::stand(Request& request, Step step, std::int64_t num_tokens) {
  if (of_earlier_run(request, step) && num_tokens > request.num_tokens) {
    request.placed += num_tokens - request.num_tokens;  // this run did not sample them
    if (step <= request.kept_in && !MOETAP_OFF("H39 tokens that an earlier run sampled late")) {
      request.unkept = std::max(request.unkept, num_tokens - 1);
    }
  }
  const bool sampled = num_tokens > request.num_tokens;
  request.num_tokens = num_tokens;
  reject(request, step);
  const auto ended = std::erase_if(
      request.in_flight, [step](const Request::InFlight& flight) { return flight.step <= step; });
  if (of_earlier_run(request, step)) return;
  if (ended > 0) request.computed = std::min(request.computed, computed_with(request));
  if (sampled) request.computed = std::max(request.computed, num_tokens - 1);
  request.accepted_in = std::max(request.accepted_in, step);
  for (Request::InFlight& flight : request.in_flight) settle_begin(request, flight);
  forget_covered_before(request, num_tokens - 1);
}

// Tokens whose rows are known: none if the step's start is not known. If a token of a step moves
// that was to compute known tokens again, the step began elsewhere.
std::int64_t Ledger::State::count_standing(const Request::InFlight& flight,
                                           std::int64_t num_tokens) {
  if (flight.guessed || computes_again(flight)) return 0;
  return detail::count_standing(flight.positions, num_tokens);
}

bool Ledger::State::computes_again(const Request::InFlight& flight) {
  return flight.goes_back && flight.prefill;
}

// Whether the step has no drafts that may move. `accepted` may then leave tokens out.
bool Ledger::State::stays(const Request::InFlight* flight,
                          std::span<const std::int64_t> accepted) const {
  if (flight == nullptr || drafts == Drafts::chain) return true;
  return computes_again(*flight) && detail::count_in_place(accepted) == std::ssize(accepted);
}

void Ledger::accept(Step step, RequestId request, std::int64_t num_tokens) {
  State& s = *state_;
  auto& r = s.accepting(step, request, num_tokens, "accept()");
  const auto* const flight = s.drafts == Drafts::tree ? State::in_flight(r, step) : nullptr;
  const std::int64_t end =
      flight == nullptr ? 0 : flight->positions.start + State::count_standing(*flight, num_tokens);
  if (flight != nullptr && end > flight->drafts) {
    throw StateError(fmt::format(
        "accept() of step {} with {} tokens of request {}, so that drafts stand at [{}, {}); say "
        "which: give `accepted`, or make the ledger with Drafts::chain where they form no tree",
        step, num_tokens, request, flight->drafts, end));
  }
  s.stand(r, step, num_tokens);
}

// A stale row is not moved, as in carry().
Ledger::State::Settlement Ledger::State::settle(const Request& request,
                                                const Request::InFlight& flight,
                                                std::span<const std::int64_t> accepted,
                                                Step moved_as) const {
  Settlement result;
  result.plan.step = moved_as;
  for (std::size_t i = 0; i < accepted.size(); ++i) {
    const std::int64_t position = flight.positions.start + static_cast<std::int64_t>(i);
    const std::int64_t computed_at = MOETAP_OFF("H30 tokens that stand elsewhere")
                                         ? position
                                         : flight.positions.start + accepted[i];
    const RowStamp row = row_of(request, computed_at, flight.step);
    const auto from = own_place(request, computed_at);
    const auto to = own_place(request, position);
    const bool moves = position != computed_at && row.step() > flushed && from && to;
    result.stamps.push_back(moves ? RowStamp::put(moved_as) : row.standing());
    if (!moves) continue;
    result.plan.from.push_back(first_slot(from->block, book.block_size()) + from->offset);
    result.plan.windows.push_back({row.step(), row.step()});
    result.plan.to.push_back(first_slot(to->block, book.block_size()) + to->offset);
    result.plan.last_step = flight.step;
  }
  return result;
}

// Other requests' rows may have been moved under the same number in the same round.
void Ledger::State::check_moved_as(const Settlement& settlement) const {
  const Step step = settlement.plan.step;
  if (settlement.plan.to.empty()) return;
  if (step != last_accept || step != last) return check_own_step(step, "accept()");
  for (const Slot slot : settlement.plan.to) {
    const BlockId block(slot.value() / book.block_size());
    if (book.last_put_before(block) < step || MOETAP_OFF("H30 a number of one owner")) continue;
    throw StateError(
        fmt::format("accept() as step {}: rows of an earlier owner of block {} were put there as "
                    "step {} too; take a new step number",
                    step, block, step));
  }
}

MovePlan Ledger::accept(Step step, RequestId request, std::int64_t num_tokens,
                        std::span<const std::int64_t> accepted, Step moved_as) {
  State& s = *state_;
  auto& r = s.accepting(step, request, num_tokens, "accept()");
  MovePlan none;
  none.step = moved_as;
  const auto* const flight = State::in_flight(r, step);
  // Else its tokens stay where they were computed, or its rows are not wanted.
  if (s.stays(flight, accepted)) {
    s.check_in_place(r, request, step, accepted);
    s.stand(r, step, num_tokens);
    return none;
  }
  const auto [start, end] = flight->positions;
  const std::int64_t count = State::count_standing(*flight, num_tokens);
  detail::check_accepted(step, request, flight->positions, State::first_draft(r, *flight), count,
                         accepted);
  auto settled = s.settle(r, *flight, accepted.first(static_cast<std::size_t>(count)), moved_as);
  s.check_moved_as(settled);

  for (std::int64_t position = start; position < end; ++position) {
    const auto index = static_cast<std::size_t>(position - start);
    const bool stays = position - start < count && accepted[index] == position - start;
    if (!stays) s.drop_row_of(r, position, step);
  }
  for (std::size_t i = 0; i < settled.stamps.size(); ++i) {
    const std::int64_t position = start + static_cast<std::int64_t>(i);
    const RowStamp stamp = settled.stamps[i];
    const auto place = s.own_place(r, position);
    if (accepted[i] == static_cast<std::int64_t>(i)) {
      if (stamp.step() != 0) s.set_row_of(r, position, step, stamp);
    } else if (place) {
      State::forget_origins(r, {position, position + 1});
      s.book.set(place->block, place->offset, stamp);
    }
  }
  if (!settled.plan.to.empty()) s.last = s.last_put = s.last_accept = moved_as;
  s.stand(r, step, num_tokens);
  return std::move(settled.plan);
}

// Where the blocks change places, no later step may have been reported to begin.
void Ledger::State::check_later(const Request& request, RequestId id,
                                const Request::InFlight& flight,
                                std::span<const std::int64_t> accepted) {
  const std::int64_t end = flight.positions.end;
  const std::int64_t changes_from = flight.positions.start + detail::count_in_place(accepted);
  if (changes_from == end) return;
  for (const Request::InFlight& later : request.in_flight) {
    const auto [first, last] = later.positions;
    if (later.step <= flight.step || first >= end || last <= changes_from || first == last)
      continue;
    throw StateError(fmt::format(
        "accept_blocks() of step {} of request {}, but its step {} was reported to compute "
        "positions [{}, {}), and blocks change places at [{}, {}); first report it again, outside "
        "of these",
        flight.step, id, later.step, first, last, changes_from, end));
  }
}

// The positions after the step's move up, since it has fewer.
void Ledger::State::move_up(Request& request, const Request::InFlight& flight,
                            std::int64_t removed) {
  const std::int64_t end = flight.positions.end;
  const auto moved = [end, removed](std::int64_t position) {
    return position < end ? std::min(position, end - removed) : position - removed;
  };
  for (Request::InFlight& later : request.in_flight) {
    if (later.step <= flight.step) continue;
    later.before.computed = moved(later.before.computed);
    if (later.positions.start < end) continue;
    later.positions = {moved(later.positions.start), moved(later.positions.end)};
    later.drafts = moved(later.drafts);
  }
  for (Request::Origin& origin : request.origins) origin.position = moved(origin.position);
  for (Request::Covered& row : request.covered) row.position = moved(row.position);
  request.computed = moved(std::max(request.computed, end));
}

void Ledger::State::drop_rejected(Request& request, const Request::InFlight& flight,
                                  std::span<const std::int64_t> accepted) {
  const auto [start, end] = flight.positions;
  const std::int64_t removed = end - start - std::ssize(accepted);
  const std::int64_t changes_from = start + detail::count_in_place(accepted);

  const auto first = request.claims.begin() + start;
  std::pmr::vector<BlockClaim> kept(&pool);
  for (const std::int64_t token : accepted) kept.push_back(first[token]);
  for (std::int64_t token = 0; token < end - start; ++token) {
    const bool stays = std::ranges::find(accepted, token) != accepted.end();
    if (!stays && own_place(request, start + token)) book.give(first[token].block);
  }
  request.claims.erase(std::ranges::copy(kept, first).out, first + (end - start));
  forget_origins(request, {changes_from, end});
  forget_covered(request, {changes_from, end});
  move_up(request, flight, removed);
}

void Ledger::accept_blocks(Step step, RequestId request, std::int64_t num_tokens,
                           std::span<const std::int64_t> accepted) {
  State& s = *state_;
  auto& r = s.accepting(step, request, num_tokens, "accept_blocks()");
  if (block_size() != 1) {
    throw ArgumentError(fmt::format(
        "accept_blocks() with blocks of {} tokens; it is for blocks of 1: move the rows in larger "
        "ones by accept() with a step number of their own",
        block_size()));
  }
  if (s.drafts == Drafts::chain) {
    throw StateError(
        "accept_blocks() of a ledger for Drafts::chain, whose requests keep the blocks of rejected "
        "tokens; call accept(), or make the ledger for Drafts::tree");
  }
  const auto* const found = State::in_flight(r, step);
  if (found == nullptr) {
    s.check_blocks_stay(r, request, step);
    s.check_in_place(r, request, step, accepted);
    s.stand(r, step, num_tokens);
    return;
  }
  const State::Request::InFlight flight = *found;
  const std::int64_t end = flight.positions.end;
  // A step that computes known tokens again samples at most one after them.
  const bool all_stay = std::ssize(accepted) == flight.positions.size() &&
                        detail::count_in_place(accepted) == flight.positions.size() &&
                        num_tokens <= std::max(r.num_tokens, end + 1);
  if (flight.guessed || (State::computes_again(flight) && !all_stay)) {
    throw StateError(fmt::format(
        "accept_blocks() of step {} of request {}, which was reported to begin at position {}, but "
        "it is not known to; accept the steps before it, and report it again where it begins",
        step, request, flight.positions.start));
  }
  if (State::computes_again(flight)) return s.stand(r, step, num_tokens);
  const std::int64_t start = flight.positions.start;
  const std::int64_t count = State::count_standing(flight, num_tokens);
  detail::check_accepted(step, request, flight.positions, State::first_draft(r, flight), count,
                         accepted);
  State::check_later(r, request, flight, accepted);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t computed_at = start + accepted[static_cast<std::size_t>(i)];
    const RowStamp row = s.row_of(r, computed_at, step);
    if (row.step() != 0) s.set_row_of(r, computed_at, step, row.standing());
  }
  s.drop_rejected(r, flight, accepted);
  s.stand(r, step, num_tokens);
}

// What a step that is over gave up is not known any more.
void Ledger::State::check_blocks_stay(const Request& request, RequestId id, Step step) const {
  if (!request.wants_rows || of_earlier_run(request, step)) return;
  if (step > std::max(request.accepted_in, request.forgotten)) return;
  throw StateError(fmt::format(
      "accept_blocks() of step {} of request {}, but steps up to {} are over: it was accepted, or "
      "is not one of the newest {} in flight; accept each step once, in order",
      step, id, std::max(request.accepted_in, request.forgotten), kMostInFlight));
}

// If nothing is known of a step's drafts, no token can have been accepted elsewhere.
void Ledger::State::check_in_place(const Request& request, RequestId id, Step step,
                                   std::span<const std::int64_t> accepted) const {
  if (!request.wants_rows || of_earlier_run(request, step)) return;
  detail::check_in_place(step, id, accepted,
                         drafts == Drafts::chain
                             ? "the ledger was made for Drafts::chain"
                             : "no step in flight of this number has drafts of the request; "
                               "accept() each step once, and schedule() it before");
}

}  // namespace moetap
