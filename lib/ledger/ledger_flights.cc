// Steps in flight. Where they begin may be a guess, so they may lie over each other, and each may
// be reported again.
#include <algorithm>

#include "lib/internal/injection.h"
#include "lib/ledger/ledger_state.h"

namespace moetap {

using detail::BlockClaim;
using detail::RowStamp;

// What there was before the step, also if it was reported already.
Ledger::State::Request::Before Ledger::State::before(const Request& request, Step step,
                                                     TokenRange positions) {
  if (const auto* const earlier = in_flight(request, step)) return earlier->before;
  if (step > request.last) return {request.last, request.computed};
  if (step == request.last) return request.before_last;
  return {request.last, positions.start};
}

// A decode step's first token was sampled, or will have been. The tokens after it, and after the
// known tokens, are drafts. What a request had when it was placed is known, and so is where a step
// begins that computes it. A step that goes back computes tokens again, or its begin was guessed
// too low. Of a tree, it is taken for such a guess unless all its tokens are known.
Ledger::State::Request::InFlight Ledger::State::planned(const Request& request, Step step,
                                                        TokenRange positions) const {
  const auto [start, end] = positions;
  Request::InFlight flight{
      .step = step, .positions = positions, .before = before(request, step, positions)};
  flight.goes_back = start < flight.before.computed && !MOETAP_OFF("H30 guesses that go back");
  const bool is_known = end <= request.num_tokens;
  const bool is_low = flight.goes_back && !is_known && drafts == Drafts::tree;
  flight.drafts = std::min(end, std::max(start + 1, request.num_tokens));
  if (MOETAP_OFF("H30 rows of drafts")) flight.drafts = end;
  const bool again = flight.goes_back && (is_known || !has_drafts(request, step));
  flight.prefill = !is_low && (start + 1 < request.placed || again);
  flight.guessed = ends_in_drafts(request, flight) && is_guess(request, flight);
  return flight;
}

// Whether another step in flight has.
bool Ledger::State::has_drafts(const Request& request, Step step) {
  return std::ranges::any_of(request.in_flight, [step](const Request::InFlight& flight) {
    return flight.step != step && flight.has_drafts();
  });
}

// The step's own, or those of one before it: where the request's next step begins is not known. A
// step that goes back may be one of these too.
bool Ledger::State::ends_in_drafts(const Request& request, const Request::InFlight& flight) {
  return flight.has_drafts() || flight.goes_back || !request.in_flight.empty();
}

// A step begins where the previous one ended. After a step with drafts this is a guess until
// accept() says how many of them were accepted. Of a chain, a row is that of its position wherever
// the step begins.
bool Ledger::State::is_guess(const Request& request, const Request::InFlight& flight) const {
  if (drafts == Drafts::chain || flight.prefill || MOETAP_OFF("H30 where a step begins")) {
    return false;
  }
  const auto [previous, computed] = flight.before;
  if (previous > std::max(request.accepted_in, request.preempted_in)) {
    return previous <= request.forgotten || in_flight(request, previous) != nullptr ||
           flight.positions.start != computed;
  }
  return flight.positions.start != request.num_tokens - 1;
}

// Only a step whose number no put can have may be reported again after later puts.
bool Ledger::State::may_be_corrected(const Request& request,
                                     const Request::InFlight& flight) const {
  if (in_flight(request, flight.step) != nullptr) return true;
  return ends_in_drafts(request, flight) && flight.step > last_put;
}

// Whether this was reported before, as a step without drafts: its rows are there, and no others.
bool Ledger::State::is_repeated(const Request& request, const Request::InFlight& flight) const {
  const auto [start, end] = flight.positions;
  if (flight.step > request.last || in_flight(request, flight.step) != nullptr) return false;
  if (flight.has_drafts() || start == end || !request.wants_rows) return false;
  for (std::int64_t p = std::max<std::int64_t>(start - 1, 0); p <= end; ++p) {
    const bool is_its = start <= p && p < end;
    if (is_on_top(request, p, flight.step) != is_its) return false;
  }
  return true;
}

// Whether the step was reported before, and as one that may be what it is now.
bool Ledger::State::is_known(const Request& request, const Request::InFlight& flight) {
  if (!request.wants_rows) return flight.step <= request.last;
  if (in_flight(request, flight.step) != nullptr) return true;
  return flight.step == request.last && !ends_in_drafts(request, flight);
}

const Ledger::State::Request::InFlight* Ledger::State::in_flight(const Request& request,
                                                                 Step step) {
  const auto found = std::ranges::find(request.in_flight, step, &Request::InFlight::step);
  return found == request.in_flight.end() ? nullptr : &*found;
}

// A step in flight begins after all tokens that were accepted, and after the prompt if that is
// computed: its rows before that are of a wrong guess.
TokenRange Ledger::State::positions_with_rows(const Request& request,
                                              const Request::InFlight& flight) {
  const auto [start, end] = flight.positions;
  if (flight.prefill) return {start, end};
  const auto [previous, computed] = flight.before;
  const bool follows = previous > request.preempted_in && computed >= request.placed;
  const std::int64_t first = std::max(request.num_tokens - 1, follows ? request.placed : 0);
  return {std::clamp(first, start, end), end};
}

// If a step begins elsewhere than reported, it is not known which of its rows is which token's.
void Ledger::State::settle_begin(Request& request, Request::InFlight& flight) {
  if (flight.prefill) return;
  const auto [start, end] = flight.positions;
  const std::int64_t first = positions_with_rows(request, flight).start;
  for (std::int64_t p = start; p < first; ++p) drop_row_of(request, p, flight.step);
  if (drafts == Drafts::chain || flight.before.step > request.accepted_in) return;
  flight.guessed = is_guess(request, flight);
  for (std::int64_t p = start; flight.guessed && p < end; ++p) drop_row_of(request, p, flight.step);
  for (std::int64_t p = start; !flight.guessed && p < flight.drafts; ++p) {
    const RowStamp row = row_of(request, p, flight.step);
    if (row.step() != 0) set_row_of(request, p, flight.step, row.standing());
  }
}

// --- the rows of one step

std::optional<Ledger::State::Place> Ledger::State::own_place(const Request& request,
                                                             std::int64_t position) const {
  const auto index = static_cast<std::size_t>(position / book.block_size());
  if (index >= request.claims.size()) return std::nullopt;
  const BlockClaim& claim = request.claims[index];
  if (!claim.owned || !book.stands(claim)) return std::nullopt;
  return Place{claim.block, static_cast<int>(position % book.block_size())};
}

// Whether the newest row there is the request's own, which `step` computed: also one that has moved
// since.
bool Ledger::State::is_on_top(const Request& request, std::int64_t position, Step step) const {
  const auto place = own_place(request, position);
  if (!place) return false;
  const RowStamp stamp = stamp_at(*place);
  if (!stamp.is_put()) return stamp.step() == step;
  return std::ranges::any_of(request.origins, [&](const Request::Origin& origin) {
    return origin.position == position && origin.step == step;
  });
}

// The row that `step` computed there, under those of later steps too; else no row.
RowStamp Ledger::State::row_of(const Request& request, std::int64_t position, Step step) const {
  const auto place = own_place(request, position);
  if (!place) return {};
  if (is_on_top(request, position, step)) return stamp_at(*place);
  const auto found = std::ranges::find_if(request.covered, [&](const Request::Covered& row) {
    return row.position == position && row.stamp.step() == step && !row.stamp.is_put();
  });
  return found == request.covered.end() ? RowStamp() : found->stamp;
}

// Only if row_of() has one.
void Ledger::State::set_row_of(Request& request, std::int64_t position, Step step, RowStamp stamp) {
  if (is_on_top(request, position, step)) {
    const Place place = *own_place(request, position);
    return book.set(place.block, place.offset, stamp);
  }
  for (Request::Covered& row : request.covered) {
    if (row.position == position && row.stamp.step() == step) row.stamp = stamp;
  }
}

// The row that it covered is the position's again.
void Ledger::State::drop_row_of(Request& request, std::int64_t position, Step step) {
  const bool on_top = is_on_top(request, position, step);
  auto newest = request.covered.end();
  for (auto row = request.covered.begin(); row != request.covered.end(); ++row) {
    if (row->position != position || (!on_top && row->stamp.step() != step)) continue;
    if (newest == request.covered.end() || row->stamp.step() > newest->stamp.step()) newest = row;
  }
  if (on_top) {
    const Place place = *own_place(request, position);
    const bool uncovered = newest != request.covered.end() && !MOETAP_OFF("H30 rows under a guess");
    book.set(place.block, place.offset, uncovered ? newest->stamp : RowStamp());
  }
  if (newest != request.covered.end()) request.covered.erase(newest);
}

// --- what a step covers

// How many of the positions have a row.
std::size_t Ledger::State::num_rows(const Request& request, TokenRange positions) const {
  std::size_t count = 0;
  for (std::int64_t position = positions.start; position < positions.end; ++position) {
    const auto place = own_place(request, position);
    count += place && stamp_at(*place).step() != 0 ? 1 : 0;
  }
  return count;
}

// The rows there are the step's.
void Ledger::State::compute(Request& request, const Request::InFlight& flight) {
  std::int64_t drafts_from = flight.guessed ? flight.positions.start : flight.drafts;
  if (drafts == Drafts::chain) drafts_from = flight.positions.end;
  for_each_block(positions_with_rows(request, flight), [&](std::size_t index, int first, int end) {
    const auto begin = static_cast<std::int64_t>(index) * book.block_size();
    const auto draft = std::clamp<std::int64_t>(drafts_from - begin, first, end);
    book.compute(flight.step, request.claims[index].block, first, static_cast<int>(draft), end);
  });
}

// The same, but the rows of earlier steps are kept under those of the step, and rows of later ones
// stay on top. Drafts that moved are not kept.
void Ledger::State::cover(Request& request, const Request::InFlight& flight) {
  const std::size_t before = request.covered.size();
  const auto [start, end] = positions_with_rows(request, flight);
  for (std::int64_t position = start; position < end; ++position) {
    const auto place = own_place(request, position);
    if (!place || stamp_at(*place).step() == 0) continue;
    const auto moved = std::ranges::find(request.origins, position, &Request::Origin::position);
    if (moved == request.origins.end()) request.covered.push_back({position, stamp_at(*place)});
  }
  compute(request, flight);
  for (std::size_t i = before; i < request.covered.size(); ++i) {
    auto& [position, stamp] = request.covered[i];
    if (stamp.step() < flight.step) continue;
    const Place place = *own_place(request, position);
    const RowStamp ours = stamp_at(place);
    book.set(place.block, place.offset, stamp);
    stamp = ours;
  }
}

// Where the step may write, whatever was reported: from the last known token on, as far as it gets
// if all drafts before it are accepted. If the request ends while the step is in flight, no call
// reports it again.
void Ledger::State::reach(const Request& request, const Request::InFlight& flight) {
  std::int64_t first = flight.positions.start;
  if (request.forgotten <= request.accepted_in) {  // else accept() is not called
    first = std::clamp<std::int64_t>(request.num_tokens - 1, 0, first);
  }
  std::int64_t last_start = std::max(flight.positions.start, request.num_tokens - 1);
  std::int64_t tokens = flight.positions.size();
  for (const Request::InFlight& other : request.in_flight) {
    first = std::min(first, other.positions.start);
    last_start = std::max(last_start, other.positions.start);
    tokens += other.positions.size();
  }
  const auto room = static_cast<std::int64_t>(request.claims.size()) * book.block_size();
  for_each_block({first, std::min(room, last_start + tokens)}, [&](std::size_t index, int, int) {
    book.set_last_write(request.claims[index].block, flight.step);
  });
}

// Nothing is left of where the step was reported before. Also makes room for it.
void Ledger::State::withdraw(Request& request, Step step) {
  TokenRange before{0, 0};
  const auto found = std::ranges::find(request.in_flight, step, &Request::InFlight::step);
  if (found != request.in_flight.end()) {
    before = found->positions;
    request.in_flight.erase(found);
  } else if (step <= request.last) {  // as a step without drafts, it may have been anywhere
    before.end = static_cast<std::int64_t>(request.claims.size()) * book.block_size();
  }
  if (!MOETAP_OFF("H30 rows where a step no longer begins")) {
    for (std::int64_t p = before.start; p < before.end; ++p) drop_row_of(request, p, step);
  }
  if (request.in_flight.size() >= kMostInFlight) {
    const auto oldest = std::ranges::min_element(request.in_flight, {}, &Request::InFlight::step);
    request.forgotten = oldest->step;
    request.in_flight.erase(oldest);
    std::erase_if(request.covered, [&](const Request::Covered& row) {
      return row.stamp.step() <= request.forgotten;
    });
  }
}

void Ledger::State::forget_covered(Request& request, TokenRange positions) {
  std::erase_if(request.covered, [positions](const Request::Covered& row) {
    return row.position >= positions.start && row.position < positions.end;
  });
}

// Their steps are over. But one that goes back may still be reported elsewhere.
void Ledger::State::forget_covered_before(Request& request, std::int64_t position) {
  const auto is_under_one = [&](const Request::Covered& row) {
    return std::ranges::any_of(request.in_flight, [&](const Request::InFlight& flight) {
      return flight.goes_back && flight.positions.start <= row.position &&
             row.position < flight.positions.end;
    });
  };
  std::erase_if(request.covered, [&](const Request::Covered& row) {
    return row.position < position && !is_under_one(row);
  });
}

}  // namespace moetap
