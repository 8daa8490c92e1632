// Requests are admitted, scheduled and removed.
#include <moetap/error.h>

#include <fmt/format.h>

#include <algorithm>

#include "lib/internal/injection.h"
#include "lib/internal/number_format.h"
#include "lib/ledger/ledger_state.h"

namespace moetap {
namespace {

using detail::BlockClaim;

// Makes room, so that later code cannot throw. Grows by doubling, as push_back() does.
template <class T>
void make_room(std::pmr::vector<T>& list, std::size_t more) {
  const std::size_t needed = list.size() + more;
  if (needed > list.capacity()) list.reserve(std::max(needed, 2 * list.capacity()));
}

}  // namespace

Ledger::Ledger(std::int64_t num_blocks, int block_size, Drafts drafts)
    : state_(std::make_unique<State>(num_blocks, block_size, drafts)) {}
Ledger::~Ledger() = default;

std::int64_t Ledger::num_slots() const { return state_->book.num_slots(); }
int Ledger::block_size() const { return state_->book.block_size(); }

bool Ledger::wants_rows(RequestId request) const { return state_->find(request).wants_rows; }
std::int64_t Ledger::num_wanting() const { return state_->wanting; }

const Ledger::State::Request& Ledger::State::find(RequestId request) const {
  const auto found = requests.find(request);
  if (found == requests.end()) {
    throw StateError(
        fmt::format("request {} is not in the ledger: it was never admitted, or is over", request));
  }
  return found->second;
}

Ledger::State::Request& Ledger::State::running(RequestId request, const char* call) {
  auto& found = find(request);
  if (found.preempted) {
    throw StateError(
        fmt::format("{} of request {}, which is preempted; resume() it first", call, request));
  }
  return found;
}

void Ledger::State::erase(RequestId request) {
  const auto found = requests.find(request);
  if (found->second.wants_rows) --wanting;
  requests.erase(found);
}

void Ledger::State::check_placement(const Placement& placement) const {
  const auto room = static_cast<std::int64_t>(placement.blocks.size()) * book.block_size();
  if (placement.cached < 0 || placement.cached > room) {
    throw ArgumentError(fmt::format("{} cached positions in {} blocks of {}; allowed are 0 to {}",
                                    placement.cached, placement.blocks.size(), book.block_size(),
                                    room));
  }
}

void Ledger::State::check_known(const Request& request, RequestId id, TokenRange positions,
                                const char* call) {
  if (positions.end <= request.num_tokens || MOETAP_OFF("H30 rows of tokens that are not known"))
    return;
  throw ArgumentError(
      fmt::format("{} of positions [{}, {}) of request {}, which is known to have {} tokens; "
                  "accept() its other tokens first",
                  call, positions.start, positions.end, id, request.num_tokens));
}

// Fully cached blocks stay shared; the others become this request's own.
void Ledger::State::place(Request& request, const Placement& placement) {
  check_placement(placement);
  book.require_distinct(placement.blocks);
  const auto shared = static_cast<std::size_t>(placement.cached / book.block_size());
  const auto part = static_cast<int>(placement.cached % book.block_size());
  book.require_free(placement.blocks.subspan(shared));
  if (request.wants_rows) make_room(request.claims, placement.blocks.size());

  for (std::size_t i = 0; i < placement.blocks.size(); ++i) {
    const BlockClaim claim = i < shared ? book.take_hit(placement.blocks[i])
                                        : book.give(placement.blocks[i], i == shared ? part : 0);
    if (request.wants_rows) request.claims.push_back(claim);
  }
  request.placed = request.num_tokens;
  request.computed = placement.cached;
  request.preempted = false;
}

void Ledger::admit(const Admission& admission) {
  State& s = *state_;
  if (admission.num_tokens < 0 || admission.start < 0 || admission.start > admission.num_tokens) {
    throw ArgumentError(fmt::format(
        "request {} of {} tokens asks for rows from position {}; allowed are 0 <= start <= tokens",
        admission.request, admission.num_tokens, admission.start));
  }
  const auto [entry, added] = s.requests.try_emplace(admission.request, &s.pool);
  if (!added) {
    throw StateError(
        fmt::format("request {} is in the ledger already; finish() or abort() it, or "
                    "resume() it after a preemption",
                    admission.request));
  }
  auto& request = entry->second;
  request.num_tokens = admission.num_tokens;
  request.start = admission.start;
  request.wants_rows = admission.wants_rows;
  try {
    State::check_known(request, admission.request, {0, admission.placement.cached},
                       "admit() with a hit");
    s.place(request, admission.placement);
  } catch (...) {
    s.requests.erase(entry);
    throw;
  }
  if (request.wants_rows) ++s.wanting;
}

void Ledger::State::preempt(Request& request) {
  if (!MOETAP_OFF("H10 rows of the first run")) request.claims.clear();
  request.origins.clear();
  request.covered.clear();
  request.in_flight.clear();
  request.computed = 0;
  request.preempted = true;
  request.preempted_in = last;
}

void Ledger::preempt(RequestId request) { state_->preempt(state_->running(request, "preempt()")); }

// A run that sampled nothing computed only what the next run computes again.
RowPlan Ledger::preempt_keeping(RequestId request) {
  State& s = *state_;
  auto& r = s.running(request, "preempt_keeping()");
  const bool sampled = r.num_tokens > r.placed;
  RowPlan plan = s.plan(
      request, r, r.wants_rows && sampled ? s.available(r, r.start) : TokenRange{r.start, r.start});
  if (plan.range.size() > 0 && !MOETAP_OFF("H39 rows of the run that sampled")) {
    r.start = r.kept = plan.range.end;
  }
  s.preempt(r);
  r.kept_in = r.preempted_in;
  return plan;
}

void Ledger::resume(RequestId request, const Placement& placement) {
  auto& found = state_->find(request);
  if (!found.preempted) {
    throw StateError(fmt::format("resume() of request {}, which is not preempted", request));
  }
  State::check_known(found, request, {0, placement.cached}, "resume() with a hit");
  state_->place(found, placement);
}

void Ledger::State::check_step(Step step, const char* call) const {
  if (step > 0 && step < detail::RowStamp::kStepLimit) return;
  throw ArgumentError(fmt::format("{} with step {}; steps are 1 to {}", call, step,
                                  detail::RowStamp::kStepLimit - 1));
}

void Ledger::State::check_positions(TokenRange positions, std::size_t blocks) const {
  const auto room = static_cast<std::int64_t>(blocks) * book.block_size();
  if (positions.start < 0 || positions.end < positions.start || positions.end > room) {
    throw RangeError(
        fmt::format("positions [{}, {}) of a request that has {} blocks of {}, which hold [0, {})",
                    positions.start, positions.end, blocks, book.block_size(), room));
  }
}

void Ledger::State::check_own_step(Step step, const char* call) const {
  check_step(step, call);
  if (step > last) return;
  throw StateError(fmt::format(
      "{} as step {}, but step {} was used already; rows that are put take a new step number", call,
      step, last));
}

void Ledger::State::check_writable(const Request& request, TokenRange positions, Step step) const {
  const auto reject = [&](std::size_t index, const char* why) {
    throw StateError(
        fmt::format("positions [{}, {}) in step {}: block {} (number {} of the request) {}",
                    positions.start, positions.end, step, request.claims[index].block, index, why));
  };
  for_each_block(positions, [&](std::size_t index, int first, int end) {
    if (index >= request.claims.size()) return;  // a new block
    const BlockClaim& claim = request.claims[index];
    if (!claim.owned) reject(index, "is shared with other requests; copy() it before writing");
    if (!book.stands(claim)) {
      reject(index, "was given to another request; preempt() this one first");
    }
    if (step <= book.last_put(claim.block) && in_flight(request, step) == nullptr) {
      reject(index, "had rows put into it under this or a later step; report steps in order");
    }
    if (step <= book.moved_in(claim.block) && !MOETAP_OFF("H30 blocks that moved since")) {
      reject(index, "was moved there under a later step; this one writes where it was before");
    }
    const auto stamps = book.stamps(claim.block).subspan(first, end - first);
    const auto is_anothers = [step](auto stamp) {
      return stamp.step() != 0 && stamp.step() != step;
    };
    if (book.hit(claim.block) && std::ranges::any_of(stamps, is_anothers)) {
      reject(index, "has rows there that others hit; copy() it before writing");
    }
    if (step >= last || in_flight(request, step) != nullptr) return;
    if (std::ranges::any_of(stamps, [step](auto stamp) { return stamp.step() > step; })) {
      reject(index, "has rows of later steps there; report steps in order");
    }
  });
}

void Ledger::schedule(Step step, RequestId request, TokenRange positions,
                      std::span<const BlockId> new_blocks) {
  State& s = *state_;
  auto& r = s.running(request, "schedule()");
  s.check_step(step, "schedule()");
  const State::Request::InFlight flight = s.planned(r, step, positions);
  if (new_blocks.empty() && s.is_repeated(r, flight)) return;
  const bool in_flight = r.wants_rows && s.may_be_corrected(r, flight);
  if (step <= s.last_put && !s.is_known(r, flight)) {
    throw StateError(fmt::format(
        "schedule() of request {} with step {}, but rows were put under step {}; give "
        "each put a step number of its own and report new steps, and those with drafts, "
        "before it",
        request, step, s.last_put));
  }
  if (r.wants_rows) {
    s.check_positions(positions, r.claims.size() + new_blocks.size());
    s.check_writable(r, positions, step);
    if (in_flight) {
      make_room(r.in_flight, 1);
      make_room(r.covered, s.num_rows(r, positions));
    }
  }
  if (!new_blocks.empty()) {
    s.book.require_distinct(new_blocks);
    s.book.require_free(new_blocks);
    if (r.wants_rows) make_room(r.claims, new_blocks.size());
  }

  for (const BlockId block : new_blocks) {
    const BlockClaim claim = s.book.give(block);
    if (r.wants_rows) r.claims.push_back(claim);
  }
  if (r.wants_rows) {
    if (State::ends_in_drafts(r, flight)) s.reach(r, flight);
    if (in_flight) {
      s.withdraw(r, step);
      s.cover(r, flight);
      r.in_flight.push_back(flight);
    } else {
      s.compute(r, flight);
    }
    State::forget_origins(r, positions);
    r.computed = std::max(r.computed, positions.end);
  }
  if (step >= r.last) {
    r.before_last = flight.before;
    r.last = step;
  }
  s.last = std::max(s.last, step);
}

}  // namespace moetap
