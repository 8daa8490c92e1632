// What to read of a request, and which blocks are held until it is read.
#include <moetap/error.h>

#include <fmt/format.h>

#include <algorithm>

#include "lib/internal/injection.h"
#include "lib/internal/number_format.h"
#include "lib/ledger/ledger_state.h"

namespace moetap {
namespace {

using detail::BlockClaim;

// Adds one position's verdict, as part of the last one where they meet.
void add_verdict(RowPlan& plan, std::int64_t position, RowState state) {
  if (!plan.verdicts.empty()) {
    auto& [positions, last_state] = plan.verdicts.back();
    if (last_state == state && positions.end == position) {
      ++positions.end;
      return;
    }
  }
  plan.verdicts.push_back({{position, position + 1}, state});
}

}  // namespace

// Adds the rows [first, end) of one block, for the positions from `position` on. A request has
// thousands of rows, nearly all of them good. So one loop without branches handles all rows, and a
// second one runs only if some have a verdict.
void Ledger::State::read_block(RowPlan& plan, const BlockClaim& claim, int first, int end,
                               std::int64_t position) const {
  const bool lost = !book.stands(claim);
  if (!lost) plan.blocks.push_back(claim.block);
  const auto stamps = book.stamps(claim.block).subspan(first, end - first);
  const Slot slot = first_slot(claim.block, book.block_size()) + first;
  const auto at = static_cast<std::size_t>(position - plan.range.start);
  Slot* const slots = plan.slots.data() + at;
  StepWindow* const windows = plan.windows.data() + at;
  Step last = 0;
  bool known = !lost;
  for (std::size_t i = 0; i < stamps.size(); ++i) {
    const Step step = stamps[i].row_step();
    slots[i] = slot + static_cast<std::int64_t>(i);
    windows[i] = {step, step};
    known &= step > flushed;
    last = std::max(last, stamps[i].is_put() ? 0 : step);
  }
  if (known) {
    plan.last_step = std::max(plan.last_step, last);
  } else {
    judge_block(plan, stamps, lost, position);
  }
}

void Ledger::State::judge_block(RowPlan& plan, std::span<const detail::RowStamp> stamps, bool lost,
                                std::int64_t position) const {
  for (const detail::RowStamp stamp : stamps) {
    const Step step = stamp.row_step();
    if (!lost && step > flushed) {
      if (!stamp.is_put()) plan.last_step = std::max(plan.last_step, step);
    } else {
      add_verdict(plan, position,
                  lost        ? RowState::clobbered
                  : step == 0 ? RowState::missing
                              : RowState::stale);
    }
    ++position;
  }
}

RowPlan Ledger::State::plan(RequestId id, const Request& request, TokenRange range) const {
  RowPlan plan;
  plan.request = id;
  plan.range = range;
  const auto room = static_cast<std::int64_t>(request.claims.size()) * book.block_size();
  const TokenRange covered{range.start, std::clamp(room, range.start, range.end)};
  if (MOETAP_OFF("H16 the whole range")) plan.range = covered;
  plan.slots.resize(static_cast<std::size_t>(covered.size()));
  plan.windows.resize(static_cast<std::size_t>(covered.size()));
  plan.blocks.reserve(request.claims.size());
  for_each_block(covered, [&](std::size_t index, int first, int end) {
    read_block(plan, request.claims[index], first, end,
               static_cast<std::int64_t>(index) * book.block_size() + first);
  });
  miss(plan, {range.start, std::min(range.end, request.unkept)});
  return plan;
}

// Marks these first positions of the plan as missing.
void Ledger::State::miss(RowPlan& plan, TokenRange positions) {
  if (positions.size() <= 0) return;
  for (RowPlan::Verdict& verdict : plan.verdicts) {
    verdict.positions.start = std::max(verdict.positions.start, positions.end);
  }
  std::erase_if(plan.verdicts, [](const RowPlan::Verdict& verdict) {
    return verdict.positions.start >= verdict.positions.end;
  });
  plan.verdicts.insert(plan.verdicts.begin(), {positions, RowState::missing});
}

TokenRange Ledger::State::available(const Request& request, std::int64_t start) const {
  if (MOETAP_OFF("H17 rows of accepted tokens")) return {start, std::max(start, request.computed)};
  return {start, std::max(start, std::min(request.num_tokens - 1, request.computed))};
}

RowPlan Ledger::finish(RequestId request, std::int64_t num_tokens) {
  State& s = *state_;
  const auto& r = s.find(request);
  if (num_tokens <= r.start && r.kept == 0) {
    throw ArgumentError(fmt::format(
        "request {} finishes with {} tokens, but its rows were asked for from position {}", request,
        num_tokens, r.start));
  }
  if (MOETAP_OFF("H19 one row less than tokens")) ++num_tokens;
  const std::int64_t end = r.wants_rows ? std::max(num_tokens - 1, r.start) : r.start;
  RowPlan plan = s.plan(request, r, {r.start, end});
  s.erase(request);
  return plan;
}

RowPlan Ledger::abort(RequestId request) {
  State& s = *state_;
  const auto& r = s.find(request);
  RowPlan plan =
      s.plan(request, r, r.wants_rows ? s.available(r, r.start) : TokenRange{r.start, r.start});
  s.erase(request);
  return plan;
}

RowPlan Ledger::rows_since(RequestId request, std::int64_t start) const {
  const State& s = *state_;
  const auto& r = s.find(request);
  if (!r.wants_rows) {
    throw StateError(
        fmt::format("rows_since() of request {}, which was admitted without wants_rows", request));
  }
  const std::int64_t most = std::max(r.num_tokens - 1, r.kept);
  if (start < r.kept || start > most) {
    throw RangeError(fmt::format(
        "rows from position {} of request {}, which has {} tokens; allowed are {} to {}{}", start,
        request, r.num_tokens, r.kept, most,
        r.kept > 0 ? ", since preempt_keeping() gave those before to its caller" : ""));
  }
  return s.plan(request, r, s.available(r, MOETAP_OFF("H18 only what is new") ? 0 : start));
}

RowPlan Ledger::block_rows(BlockId block) const {
  const State& s = *state_;
  s.book.require_valid(block);
  RowPlan plan;
  plan.range = {0, block_size()};
  plan.slots.resize(static_cast<std::size_t>(block_size()));
  plan.windows.resize(static_cast<std::size_t>(block_size()));
  s.read_block(plan, s.book.share(block), 0, block_size(), 0);
  return plan;
}

std::int64_t Ledger::cached_rows(const Placement& placement) const {
  const State& s = *state_;
  s.check_placement(placement);
  for (const BlockId block : placement.blocks) s.book.require_valid(block);
  for (std::int64_t position = 0; position < placement.cached; ++position) {
    const BlockId block = placement.blocks[static_cast<std::size_t>(position / block_size())];
    const auto offset = static_cast<std::size_t>(position % block_size());
    if (s.book.stamps(block)[offset].row_step() <= s.flushed) {
      return position;
    }
  }
  return placement.cached;
}

Hold Ledger::hold(const RowPlan& plan) {
  for (const BlockId block : plan.blocks) state_->book.require_valid(block);
  Hold hold;
  hold.blocks_ = plan.blocks;
  hold.ledger_ = this;
  state_->book.hold(hold.blocks_, plan.request);
  return hold;
}

bool Ledger::held(BlockId block) const {
  state_->book.require_valid(block);
  return state_->book.held(block) && !MOETAP_OFF("H11 blocks that are held");
}

Hold::Hold(Hold&& other) noexcept
    : ledger_(std::exchange(other.ledger_, nullptr)), blocks_(std::move(other.blocks_)) {}

Hold& Hold::operator=(Hold&& other) noexcept {
  Hold moved(std::move(other));
  std::swap(ledger_, moved.ledger_);
  std::swap(blocks_, moved.blocks_);
  return *this;
}

Hold::~Hold() {
  if (ledger_ != nullptr) ledger_->state_->book.release(blocks_);
}

}  // namespace moetap
