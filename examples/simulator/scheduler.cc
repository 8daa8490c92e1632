#include "examples/simulator/scheduler.h"

#include <moetap/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lib/internal/number_format.h"

namespace demo {
namespace {

// A client's behaviour is drawn from its request's seed and one of these.
enum Draw : std::uint64_t { kOptIn = 1, kStream, kAbort, kAbortAfter };

std::int64_t blocks_for(std::int64_t positions, int block_size) {
  return (positions + block_size - 1) / block_size;
}

}  // namespace

SchedulerCounts& SchedulerCounts::operator+=(const SchedulerCounts& other) {
  steps += other.steps;
  tokens += other.tokens;
  prefix_hit_tokens += other.prefix_hit_tokens;
  offload_hit_tokens += other.offload_hit_tokens;
  preemptions += other.preemptions;
  drafts += other.drafts;
  drafts_rejected += other.drafts_rejected;
  wanting += other.wanting;
  aborted += other.aborted;
  rows_published += other.rows_published;
  return *this;
}

Scheduler::Scheduler(const SchedulerOptions& options, const std::vector<Request>& requests)
    : options_(options),
      cache_(options.num_blocks, options.block_size),
      ledger_(options.num_blocks, options.block_size, moetap::Drafts::chain) {
  if (options.max_requests < 1 || options.max_tokens < options.max_requests) {
    throw moetap::ArgumentError(fmt::format(
        "steps of {} tokens for {} requests at a time; a step must have a token for each, and "
        "there must be at least 1",
        options.max_tokens, options.max_requests));
  }
  for (std::size_t i = 0; i < requests.size(); ++i) add_request(requests[i], i + 1);
  waiting_.assign(sequences_.begin(), sequences_.end());
}

void Scheduler::add_request(Request request, std::size_t number) {
  const std::int64_t needed = blocks_for(request.length() - 1, options_.block_size);
  if (needed > options_.num_blocks) {
    rejected_.push_back(fmt::format("{}: {} tokens need {} KV blocks, there are {} (--kv-blocks)",
                                    request.name, request.length(), needed, options_.num_blocks));
    return;
  }
  auto sequence = std::make_shared<Sequence>();
  sequence->id = RequestId(number);
  const std::uint64_t seed = request.seed;
  sequence->wants_rows = happens(options_.clients.opt_in, seed, kOptIn);
  sequence->streams = sequence->wants_rows && happens(options_.clients.stream, seed, kStream);
  if (happens(options_.clients.abort, seed, kAbort)) {
    const auto most = static_cast<std::uint64_t>(request.output) + 4;
    sequence->abort_after = static_cast<std::int64_t>(1 + mix(seed ^ mix(kAbortAfter)) % most);
  }
  if (sequence->wants_rows) ++counts_.wanting;
  sequence->request = std::move(request);
  sequences_.push_back(std::move(sequence));
}

void Scheduler::begin_plan() {
  plan_.ended.clear();
  plan_.spans.clear();
  plan_.blocks.clear();
  plan_.wanted.clear();
  plan_.tokens.clear();
  plan_.num_tokens = 0;
  work_.clear();
  budget_ = options_.max_tokens;
}

const StepPlan& Scheduler::plan() {
  begin_plan();
  if (!admit_offloaded()) return plan_;
  plan_.step = last_step_ + 1;
  const std::int64_t preemptions = counts_.preemptions;

  plan_decodes();
  plan_prefills();
  if (counts_.preemptions == preemptions) admit();
  // All running requests are in the middle of their prompts and none can continue: the latest makes
  // room.
  while (plan_.empty() && in_flight_.empty() && unreleased_ == 0 && running_.size() > 1) {
    preempt_latest();
    plan_prefills();
  }
  if (plan_.empty()) {
    if (in_flight_.empty() && unreleased_ == 0 && !done()) {
      throw moetap::StateError(fmt::format("nothing can be planned for step {}", plan_.step));
    }
    return plan_;
  }
  plan_.ended = std::exchange(ended_, {});
  last_step_ = plan_.step;
  in_flight_.push_back({plan_.step, std::exchange(work_, {})});
  return plan_;
}

const StepPlan& Scheduler::farewell() {
  begin_plan();
  plan_.ended = std::exchange(ended_, {});
  return plan_;
}

void Scheduler::plan_decodes() {
  const std::int64_t most = options_.num_blocks * options_.block_size;  // positions of a request
  for (std::size_t i = 0; i < running_.size() && budget_ > 0; ++i) {
    const std::shared_ptr<Sequence> sequence = running_[i];
    if (!sequence->decodes()) continue;
    // A token that it sampled meanwhile may be its end; until that is known it cannot outgrow the
    // cache.
    const std::int64_t count = std::min({1 + options_.drafts, budget_, most - sequence->planned});
    if (count < 1) continue;
    // Requests that are already planned come earlier, so the latest is never one of them.
    while (i < running_.size() && !reserve(*sequence, sequence->planned + count)) preempt_latest();
    if (i < running_.size()) add(sequence, count);
  }
}

void Scheduler::plan_prefills() {
  for (const auto& sequence : running_) {
    if (sequence->decodes()) continue;
    const std::int64_t count =
        std::min({sequence->prefill - sequence->planned, budget_, fitting(*sequence)});
    if (count > 0 && reserve(*sequence, sequence->planned + count)) add(sequence, count);
  }
}

void Scheduler::admit() {
  while (!waiting_.empty() && budget_ > 0 &&
         static_cast<std::int64_t>(running_.size()) < options_.max_requests &&
         start(waiting_.front())) {
    waiting_.pop_front();
  }
}

// Takes the cached prefix and the blocks of the first chunk, or nothing.
bool Scheduler::start(const std::shared_ptr<Sequence>& sequence) {
  if (cache_.free_blocks() == 0) return false;
  Sequence& s = *sequence;
  take_hit(s);
  const std::vector<BlockId> hit = s.blocks;
  const std::int64_t chunk = std::min(s.num_tokens() - s.planned, budget_);
  if (!reserve(s, s.planned + chunk)) {
    cache_.release(std::exchange(s.blocks, {}));
    return false;
  }
  enter(sequence, hit);
  add(sequence, chunk);
  return true;
}

// Starts waiting requests whose next blocks come back from elsewhere. This comes first in a step,
// since put rows need an older step number than computed ones. Returns false if it has to wait for
// the steps in flight.
bool Scheduler::admit_offloaded() {
  while (offload_ != nullptr && !waiting_.empty() && cache_.free_blocks() > 0 &&
         static_cast<std::int64_t>(running_.size()) < options_.max_requests) {
    const std::shared_ptr<Sequence> sequence = waiting_.front();
    Sequence& s = *sequence;
    take_hit(s);
    const auto hit = static_cast<std::size_t>(s.cached_blocks);
    const std::int64_t found =
        offload_->hold(std::span(s.hashes).first(usable_blocks(s)).subspan(hit));
    const bool early = found > 0 && options_.drafts > 0 && !in_flight_.empty();
    if (found == 0 || early || !reserve(s, s.planned + found * options_.block_size)) {
      offload_->let_go();
      cache_.release(std::exchange(s.blocks, {}));
      return !early;
    }
    before_reuse_(fresh_);
    enter(sequence, s.blocks);
    offload_->load(++last_step_, s.id, s.planned);
    s.computed = s.planned += found * options_.block_size;
    counts_.offload_hit_tokens += found * options_.block_size;
    cache_full_blocks(s);
    waiting_.pop_front();
  }
  return true;
}

// The request runs from now on with these blocks, the first of which are cached.
void Scheduler::enter(const std::shared_ptr<Sequence>& sequence, std::span<const BlockId> blocks) {
  Sequence& s = *sequence;
  const moetap::Placement placement{blocks, s.planned};
  if (s.was_admitted()) {
    ledger_.resume(s.id, placement);
  } else {
    s.admitted = last_step_;
    s.taken = s.start;
    ledger_.admit({.request = s.id,
                   .num_tokens = s.num_tokens(),
                   .placement = placement,
                   .wants_rows = s.wants_rows,
                   .start = s.start});
  }
  counts_.prefix_hit_tokens += s.planned;
  ++s.run;
  s.told = false;
  s.state = Sequence::State::running;
  running_.push_back(sequence);
}

// At least one token is computed, to sample from.
std::size_t Scheduler::usable_blocks(const Sequence& sequence) const {
  return (sequence.tokens.size() - 1) / static_cast<std::size_t>(options_.block_size);
}

// The cached prefix, as far as it has the rows that the request wants; the rest is computed again.
void Scheduler::take_hit(Sequence& sequence) {
  sequence.begin();
  sequence.extend_hashes(options_.block_size);
  const std::size_t usable = options_.prefix_cache ? usable_blocks(sequence) : 0;
  sequence.blocks = cache_.take_cached(std::span(sequence.hashes).first(usable));
  if (sequence.wants_rows) {
    const std::int64_t positions = std::ssize(sequence.blocks) * options_.block_size;
    const auto blocks = static_cast<std::size_t>(ledger_.cached_rows({sequence.blocks, positions}) /
                                                 options_.block_size);
    cache_.release(std::span(sequence.blocks).subspan(blocks));
    sequence.blocks.resize(blocks);
  }
  sequence.cached_blocks = std::ssize(sequence.blocks);
  sequence.computed = sequence.planned = sequence.cached_blocks * options_.block_size;
  sequence.prefill = sequence.num_tokens();
}

// How many more positions fit into the free blocks and the rest of the last block.
std::int64_t Scheduler::fitting(const Sequence& sequence) const {
  const auto blocks = static_cast<std::int64_t>(sequence.blocks.size()) + cache_.free_blocks();
  return blocks * options_.block_size - sequence.planned;
}

// Gives it blocks for the first `positions`, the new ones also in fresh_; or changes nothing.
bool Scheduler::reserve(Sequence& sequence, std::int64_t positions) {
  const std::int64_t missing = blocks_for(positions, options_.block_size) -
                               static_cast<std::int64_t>(sequence.blocks.size());
  if (missing > cache_.free_blocks()) return false;
  fresh_.clear();
  for (std::int64_t i = 0; i < missing; ++i) {
    const auto evicted = offload_ != nullptr ? cache_.next_evicted() : std::nullopt;
    fresh_.push_back(cache_.allocate());
    if (evicted) offload_->store(fresh_.back(), *evicted);
  }
  sequence.blocks.insert(sequence.blocks.end(), fresh_.begin(), fresh_.end());
  return true;
}

// Adds the next `count` tokens of a request, which has the blocks for them, to the step.
void Scheduler::add(const std::shared_ptr<Sequence>& sequence, std::int64_t count) {
  Sequence& s = *sequence;
  const moetap::TokenRange positions{s.planned, s.planned + count};
  if (!fresh_.empty()) before_reuse_(fresh_);
  ledger_.schedule(plan_.step, s.id, positions, fresh_);

  const SpanKind kind = s.decodes()                  ? SpanKind::decode
                        : positions.end == s.prefill ? SpanKind::last_prefill
                                                     : SpanKind::prefill;
  const bool starts = !std::exchange(s.told, true);
  const auto& blocks = starts ? s.blocks : fresh_;
  plan_.blocks.insert(plan_.blocks.end(), blocks.begin(), blocks.end());
  plan_.spans.push_back(
      {s.id, s.request.seed, positions.start, count, std::ssize(blocks), kind, starts ? 1U : 0U});
  if (kind != SpanKind::decode) {
    const auto first = s.tokens.begin() + positions.start;
    plan_.tokens.insert(plan_.tokens.end(), first, first + count);
  }
  if (s.wants_rows) {
    const moetap::TokenRange wanted{plan_.num_tokens, plan_.num_tokens + count};
    if (!plan_.wanted.empty() && plan_.wanted.back().end == wanted.start) {
      plan_.wanted.back().end = wanted.end;
    } else {
      plan_.wanted.push_back(wanted);
    }
    counts_.rows_published += count;
  }
  plan_.num_tokens += count;
  work_.push_back({sequence, s.run, positions, kind});
  s.planned = positions.end;
  budget_ -= count;
}

void Scheduler::preempt_latest() {
  std::shared_ptr<Sequence> latest = std::move(running_.back());
  running_.pop_back();
  ledger_.preempt(latest->id);
  end(*latest, moetap::RequestEnd::preempted);
  waiting_.push_front(std::move(latest));
  ++counts_.preemptions;
}

}  // namespace demo
