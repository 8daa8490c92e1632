// The results of steps: accepted and rejected tokens, and ended requests.
#include <moetap/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "examples/simulator/scheduler.h"
#include "lib/internal/number_format.h"

namespace demo {

std::vector<Ended> Scheduler::complete(Step step, std::span<const std::int32_t> counts,
                                       std::span<const Token> sampled) {
  if (in_flight_.empty() || in_flight_.front().step != step) {
    throw moetap::ArgumentError(fmt::format("step {} is not the oldest in flight", step));
  }
  std::vector<std::span<const Token>> samples;  // one per piece of work
  for (const Work& work : in_flight_.front().work) {
    samples.emplace_back();
    if (work.kind == SpanKind::prefill) continue;
    const std::int64_t most = work.kind == SpanKind::decode ? work.positions.size() : 1;
    if (counts.empty() || counts[0] < 1 || counts[0] > most ||
        static_cast<std::size_t>(counts[0]) > sampled.size()) {
      throw moetap::ArgumentError(
          fmt::format("step {} sampled other numbers of tokens than its plan asks for", step));
    }
    samples.back() = sampled.first(static_cast<std::size_t>(counts[0]));
    sampled = sampled.subspan(samples.back().size());
    counts = counts.subspan(1);
  }
  if (!counts.empty() || !sampled.empty()) {
    throw moetap::ArgumentError(fmt::format("step {} sampled more than its plan asks for", step));
  }

  const InFlight done = std::move(in_flight_.front());
  in_flight_.pop_front();
  std::vector<Ended> finished;
  for (std::size_t i = 0; i < done.work.size(); ++i) {
    const Work& work = done.work[i];
    Sequence& sequence = *work.sequence;
    counts_.tokens += work.positions.size();
    if (sequence.state != Sequence::State::running || sequence.run != work.run) continue;
    if (!accept(step, work, samples[i])) continue;
    finished.push_back(finish(work.sequence));
  }
  ++counts_.steps;
  return finished;
}

// Takes the tokens that a step sampled for a running request. Returns true if that was its end.
bool Scheduler::accept(Step step, const Work& work, std::span<const Token> sampled) {
  Sequence& s = *work.sequence;
  if (work.kind == SpanKind::decode) {
    s.computed = work.positions.start + std::ssize(sampled);
    counts_.drafts += work.positions.size() - 1;
    counts_.drafts_rejected += work.positions.size() - std::ssize(sampled);
  } else {
    s.computed = work.positions.end;
  }
  // Tokens accepted beyond its end do not count.
  const std::int64_t left = s.request.length() - s.num_tokens();
  const auto taken = sampled.first(std::min(sampled.size(), static_cast<std::size_t>(left)));
  s.tokens.insert(s.tokens.end(), taken.begin(), taken.end());
  ledger_.accept(step, s.id, s.num_tokens());
  cache_full_blocks(s);
  if (s.num_tokens() == s.request.length()) return true;
  if (work.kind == SpanKind::decode) correct(s);
  return false;
}

// Steps in flight were planned as if no draft were rejected. The worker runs them at the request's
// real position (H17).
void Scheduler::correct(Sequence& sequence) {
  std::int64_t next = sequence.computed;
  for (InFlight& step : in_flight_) {
    for (Work& work : step.work) {
      if (work.sequence.get() != &sequence || work.run != sequence.run) continue;
      const std::int64_t count = work.positions.size();
      if (work.positions.start != next) {
        work.positions = {next, next + count};
        ledger_.schedule(step.step, sequence.id, work.positions);
      }
      next += count;
    }
  }
  sequence.planned = next;
}

void Scheduler::cache_full_blocks(Sequence& sequence) {
  sequence.extend_hashes(options_.block_size);
  const std::int64_t known = std::min(sequence.computed, sequence.num_tokens());
  for (; (sequence.cached_blocks + 1) * options_.block_size <= known; ++sequence.cached_blocks) {
    const auto i = static_cast<std::size_t>(sequence.cached_blocks);
    cache_.set_hash(sequence.blocks[i], sequence.hashes[i]);
  }
}

std::vector<Ended> Scheduler::abort_due() {
  Sequences due;
  const auto is_due = [this](const std::shared_ptr<Sequence>& sequence) {
    return sequence->abort_after > 0 && sequence->was_admitted() &&
           last_step_ >= sequence->admitted + static_cast<std::int64_t>(sequence->abort_after);
  };
  std::ranges::copy_if(running_, std::back_inserter(due), is_due);
  std::ranges::copy_if(waiting_, std::back_inserter(due), is_due);
  std::vector<Ended> aborted;
  for (const auto& sequence : due) aborted.push_back(abort(sequence));
  return aborted;
}

Ended Scheduler::finish(const std::shared_ptr<Sequence>& sequence) {
  Sequence& s = *sequence;
  const std::int64_t length = s.request.length();
  const bool streamed = s.taken > s.start;
  moetap::RowPlan rows = streamed ? ledger_.rows_since(s.id, s.taken) : moetap::RowPlan();
  moetap::RowPlan all = ledger_.finish(s.id, length);
  std::erase(running_, sequence);
  end(s, moetap::RequestEnd::finished);
  return {sequence, false, std::move(streamed ? rows : all), length - 1};
}

Ended Scheduler::abort(const std::shared_ptr<Sequence>& sequence) {
  Sequence& s = *sequence;
  const bool streamed = s.taken > s.start;
  moetap::RowPlan rows = streamed ? ledger_.rows_since(s.id, s.taken) : moetap::RowPlan();
  moetap::RowPlan all = ledger_.abort(s.id);
  // Counts planned tokens for the prompt, and accepted ones for the output.
  const bool runs = s.state == Sequence::State::running;
  const std::int64_t has = runs ? std::min(s.planned, s.num_tokens() - 1) : 0;
  std::erase(running_, sequence);
  std::erase(waiting_, sequence);
  end(s, moetap::RequestEnd::aborted);
  ++counts_.aborted;
  return {sequence, true, std::move(streamed ? rows : all), std::max(s.taken, has)};
}

// The request no longer runs. Its blocks are free for others, or wait for release().
void Scheduler::end(Sequence& sequence, moetap::RequestEnd how) {
  ended_.push_back({sequence.id, static_cast<std::uint64_t>(how)});
  const bool preempted = how == moetap::RequestEnd::preempted;
  sequence.state = preempted ? Sequence::State::waiting : Sequence::State::over;
  if (options_.hold_blocks && sequence.wants_rows && !preempted) {
    ++unreleased_;
  } else {
    cache_.release(std::exchange(sequence.blocks, {}));
  }
}

void Scheduler::release(Sequence& sequence) {
  if (!options_.hold_blocks || !sequence.wants_rows) return;
  --unreleased_;
  cache_.release(std::exchange(sequence.blocks, {}));
}

}  // namespace demo
