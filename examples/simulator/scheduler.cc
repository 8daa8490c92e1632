#include "scheduler.h"

#include <moetap/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace demo {
namespace {

std::int64_t blocks_for(std::int64_t positions, int block_size) {
  return (positions + block_size - 1) / block_size;
}

// Chained, so that equal hashes mean equal contents and equal prefixes (64 bits: among a million
// blocks a collision has a chance of about 3e-8, and the verifier would show it).
void extend_hashes(Sequence& sequence, int block_size) {
  const auto size = static_cast<std::size_t>(block_size);
  while ((sequence.hashes.size() + 1) * size <= sequence.tokens.size()) {
    std::uint64_t hash = sequence.hashes.empty() ? 0x6d6f65746170ULL : sequence.hashes.back();
    const Token* token = &sequence.tokens[sequence.hashes.size() * size];
    for (std::size_t i = 0; i < size; ++i) {
      hash = mix(hash + static_cast<std::uint64_t>(token[i]) + 0x9e3779b97f4a7c15ULL);
    }
    sequence.hashes.push_back(hash);
  }
}

}  // namespace

Scheduler::Scheduler(const SchedulerOptions& options, std::vector<Request> requests)
    : options_(options), cache_(options.num_blocks, options.block_size) {
  if (options.max_requests < 1 || options.max_tokens < options.max_requests) {
    throw moetap::ArgumentError(fmt::format(
        "steps of {} tokens for {} requests at a time; a step must have a token for each, and "
        "there must be at least 1",
        options.max_tokens, options.max_requests));
  }
  for (Request& request : requests) reject_or_enqueue(std::move(request));
}

void Scheduler::reject_or_enqueue(Request request) {
  const std::int64_t needed = blocks_for(request.length() - 1, options_.block_size);
  if (needed > options_.num_blocks) {
    rejected_.push_back(fmt::format("{}: {} tokens need {} KV blocks, there are {} (--kv-blocks)",
                                    request.name, request.length(), needed, options_.num_blocks));
    return;
  }
  auto sequence = std::make_unique<Sequence>();
  sequence->id = waiting_.size() + 1;
  sequence->request = std::move(request);
  waiting_.push_back(std::move(sequence));
}

const StepPlan& Scheduler::plan(Step step) {
  plan_.step = step;
  plan_.spans.clear();
  plan_.tokens.clear();
  plan_.slots.clear();
  planned_.clear();
  budget_ = options_.max_tokens;
  const std::int64_t preemptions = counts_.preemptions;

  plan_decodes();
  plan_prefills();
  if (counts_.preemptions == preemptions) admit();
  // All that run are in the middle of their prompts and none can go on: the latest makes room.
  while (plan_.empty() && finished_.empty() && running_.size() > 1) {
    preempt_latest();
    plan_prefills();
  }
  if (plan_.empty() && finished_.empty() && !done()) {
    throw moetap::StateError(fmt::format("nothing can be planned for step {}", step));
  }
  return plan_;
}

void Scheduler::plan_decodes() {
  for (std::size_t i = 0; i < running_.size() && budget_ > 0; ++i) {
    Sequence& sequence = *running_[i];
    if (sequence.pending() != 1) continue;
    // Those that have been planned come earlier, so that the latest never is one of them.
    while (i < running_.size() && !reserve(sequence, sequence.computed + 1)) preempt_latest();
    if (i < running_.size()) add(sequence, 1);
  }
}

void Scheduler::plan_prefills() {
  for (auto& sequence : running_) {
    if (sequence->pending() <= 1) continue;
    const std::int64_t count = std::min({sequence->pending(), budget_, fitting(*sequence)});
    if (count > 0 && reserve(*sequence, sequence->computed + count)) add(*sequence, count);
  }
}

void Scheduler::admit() {
  while (!waiting_.empty() && budget_ > 0 &&
         static_cast<std::int64_t>(running_.size()) < options_.max_requests &&
         start(*waiting_.front())) {
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    Sequence& sequence = *running_.back();
    add(sequence, std::min(sequence.pending(), budget_));
  }
}

// Takes the cached prefix and the blocks of the first chunk, or nothing.
bool Scheduler::start(Sequence& sequence) {
  if (cache_.free_blocks() == 0) return false;
  if (sequence.tokens.empty()) {
    sequence.tokens.reserve(static_cast<std::size_t>(sequence.request.length()));
    for (std::int64_t i = 0; i < sequence.request.prompt; ++i) {
      sequence.tokens.push_back(sequence.request.prompt_token(i));
    }
  }
  extend_hashes(sequence, options_.block_size);
  // At least one token is computed, to sample from.
  const auto usable = (sequence.tokens.size() - 1) / static_cast<std::size_t>(options_.block_size);
  sequence.blocks = cache_.take_cached(std::span(sequence.hashes).first(usable));
  sequence.cached_blocks = static_cast<std::int64_t>(sequence.blocks.size());
  sequence.computed = sequence.cached_blocks * options_.block_size;
  if (!reserve(sequence, sequence.computed + std::min(sequence.pending(), budget_))) {
    cache_.release(std::exchange(sequence.blocks, {}));
    return false;
  }
  counts_.prefix_hit_tokens += sequence.computed;
  return true;
}

// How many more positions the free blocks and the last block's rest can take.
std::int64_t Scheduler::fitting(const Sequence& sequence) const {
  const auto blocks = static_cast<std::int64_t>(sequence.blocks.size()) + cache_.free_blocks();
  return blocks * options_.block_size - sequence.computed;
}

// Has blocks for the first `positions`, or changes nothing.
bool Scheduler::reserve(Sequence& sequence, std::int64_t positions) {
  const std::int64_t missing = blocks_for(positions, options_.block_size) -
                               static_cast<std::int64_t>(sequence.blocks.size());
  if (missing > cache_.free_blocks()) return false;
  for (std::int64_t i = 0; i < missing; ++i) sequence.blocks.push_back(cache_.allocate(plan_.step));
  return true;
}

void Scheduler::add(Sequence& sequence, std::int64_t count) {
  sequence.last_step = plan_.step;
  const std::int64_t end = sequence.computed + count;
  for (std::int64_t position = sequence.computed; position < end; ++position) {
    plan_.tokens.push_back(sequence.tokens[static_cast<std::size_t>(position)]);
    plan_.slots.push_back(
        sequence.blocks[static_cast<std::size_t>(position / options_.block_size)] *
            options_.block_size +
        position % options_.block_size);
  }
  plan_.spans.push_back({sequence.id, sequence.request.seed, sequence.computed, count,
                         count == sequence.pending() ? 1 : 0});
  planned_.push_back(&sequence);
  budget_ -= count;
}

void Scheduler::preempt_latest() {
  std::unique_ptr<Sequence> latest = std::move(running_.back());
  running_.pop_back();
  cache_.release(std::exchange(latest->blocks, {}));
  plan_.ended.push_back({latest->id, static_cast<std::uint64_t>(moetap::RequestEnd::preempted)});
  waiting_.push_front(std::move(latest));
  ++counts_.preemptions;
}

void Scheduler::complete(std::span<const Token> sampled) {
  const auto expected = std::count_if(plan_.spans.begin(), plan_.spans.end(),
                                      [](const PlanSpan& span) { return span.sample != 0; });
  if (static_cast<std::ptrdiff_t>(sampled.size()) != expected) {
    throw moetap::ArgumentError(fmt::format("step {} sampled {} tokens; its plan asks for {}",
                                            plan_.step, sampled.size(), expected));
  }
  plan_.ended.clear();
  auto sample = sampled.begin();
  for (std::size_t i = 0; i < plan_.spans.size(); ++i) {
    Sequence& sequence = *planned_[i];
    sequence.computed += plan_.spans[i].count;
    cache_full_blocks(sequence);
    if (plan_.spans[i].sample != 0) sequence.tokens.push_back(*sample++);
  }
  for (auto& sequence : running_) {
    if (static_cast<std::int64_t>(sequence->tokens.size()) < sequence->request.length()) continue;
    plan_.ended.push_back({sequence->id, static_cast<std::uint64_t>(moetap::RequestEnd::finished)});
    finished_.push_back(std::move(sequence));
  }
  std::erase(running_, nullptr);
  ++counts_.steps;
  counts_.tokens += static_cast<std::int64_t>(plan_.tokens.size());
}

void Scheduler::cache_full_blocks(Sequence& sequence) {
  extend_hashes(sequence, options_.block_size);
  for (; (sequence.cached_blocks + 1) * options_.block_size <= sequence.computed;
       ++sequence.cached_blocks) {
    const auto i = static_cast<std::size_t>(sequence.cached_blocks);
    cache_.set_hash(sequence.blocks[i], sequence.hashes[i]);
  }
}

void Scheduler::release_finished() {
  cache_.release(finished_.front()->blocks);
  finished_.pop_front();
}

}  // namespace demo
