#include "gpu/transport/request_cache.h"

#include <algorithm>

#include "lib/internal/injection.h"

namespace moetap {
namespace {

RowState state_of(MarkedSlot slot) {
  return slot.is_missing() ? RowState::missing : RowState::present;
}

}  // namespace

void RequestCache::begin(Request& kept, Step step, const RequestSpan& span) const {
  const bool goes_on = kept.step == step && kept.begin == span.position;
  if (goes_on || drafts_ == Drafts::chain) return;
  for (Drafted& drafts : kept.drafted) drafts.end = std::min(drafts.end, span.position);
  if (span.position < kept.end() && !MOETAP_OFF("H30 tokens of an undeclared tree")) {
    const std::int64_t sure = std::max(kept.position, std::min(kept.doubtful, span.position));
    const auto rows = static_cast<std::size_t>(sure - kept.position);
    kept.states.resize(rows);
    kept.rows.resize(rows * row_bytes_);
  }
  kept.step = step;
  kept.begin = span.position;
  kept.doubtful = span.num_drafts > 0 ? kNone : span.position + 1;
}

std::size_t RequestCache::reserve(Request& kept, std::int64_t position, std::size_t count) const {
  if (kept.states.empty()) kept.position = position;
  if (position < kept.position) {
    const auto before = static_cast<std::size_t>(kept.position - position);
    kept.states.insert(kept.states.begin(), before, RowState::missing);
    kept.rows.insert(kept.rows.begin(), before * row_bytes_, std::byte{0xFF});
    kept.position = position;
  }
  const auto first = static_cast<std::size_t>(position - kept.position);
  if (first + count > kept.states.size()) {
    kept.states.resize(first + count, RowState::missing);
    kept.rows.resize((first + count) * row_bytes_, std::byte{0xFF});
  }
  return first;
}

void RequestCache::put(Step step, const WantedSpan& wanted, std::span<const std::byte> rows,
                       std::span<const MarkedSlot> slots) {
  const RequestSpan& span = wanted.span;
  Request& kept = requests_[span.request];
  begin(kept, step, span);
  const auto [start, end] = wanted.tokens;
  const bool apart = drafts_ == Drafts::tree && !MOETAP_OFF("H30 rows of declared drafts");
  const std::int64_t drafts = apart ? std::clamp(span.count - span.num_drafts, start, end) : end;
  const auto count = static_cast<std::size_t>(drafts - start);
  if (count > 0) {
    const std::size_t first = reserve(kept, span.position + start, count);
    std::ranges::copy(rows.first(count * row_bytes_),
                      kept.rows.begin() + static_cast<std::ptrdiff_t>(first * row_bytes_));
    std::ranges::transform(slots.first(count),
                           kept.states.begin() + static_cast<std::ptrdiff_t>(first), state_of);
  }
  if (drafts == end) return;
  Drafted& apart_now = kept.drafted.emplace_back();
  apart_now.step = step;
  apart_now.position = span.position;
  apart_now.first = drafts;
  apart_now.rows.assign(rows.begin() + static_cast<std::ptrdiff_t>(count * row_bytes_), rows.end());
  std::ranges::transform(slots.subspan(count), std::back_inserter(apart_now.states), state_of);
}

void RequestCache::lose(Step step, const RequestSpan& span) {
  Request& kept = requests_[span.request];
  begin(kept, step, span);
  const std::size_t first = reserve(kept, span.position, static_cast<std::size_t>(span.count));
  std::fill_n(kept.states.begin() + static_cast<std::ptrdiff_t>(first), span.count,
              RowState::missing);
}

void RequestCache::accept(Step step, RequestId request, std::int64_t position,
                          std::span<const std::int64_t> accepted) {
  const auto found = requests_.find(request);
  if (found == requests_.end()) return;
  Request& kept = found->second;
  for (const Drafted& drafts : kept.drafted) {
    if (drafts.step != step || drafts.position != position) continue;
    for (std::int64_t i = 0; i < std::ssize(accepted) && position + i < drafts.end; ++i) {
      const std::int64_t from = accepted[static_cast<std::size_t>(i)] - drafts.first;
      if (from < 0 || from >= std::ssize(drafts.states)) continue;
      const std::size_t to = reserve(kept, position + i, 1);
      kept.states[to] = drafts.states[static_cast<std::size_t>(from)];
      std::copy_n(drafts.rows.begin() + from * static_cast<std::int64_t>(row_bytes_), row_bytes_,
                  kept.rows.begin() + static_cast<std::ptrdiff_t>(to * row_bytes_));
    }
  }
  std::erase_if(kept.drafted, [step](const Drafted& drafts) { return drafts.step <= step; });
}

void RequestCache::clear(RequestId request) {
  const auto found = requests_.find(request);
  if (found != requests_.end()) found->second = {};
}

RequestCache::Rows RequestCache::rows(RequestId request) const {
  const auto found = requests_.find(request);
  if (found == requests_.end()) return {};
  const Request& kept = found->second;
  return {kept.position, kept.states, kept.rows,
          std::clamp(kept.doubtful, kept.position, kept.end())};
}

}  // namespace moetap
