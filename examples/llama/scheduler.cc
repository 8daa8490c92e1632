#include "scheduler.h"

#include <moetap/read_rows.h>
#include <moetap/slots.h>

#include <algorithm>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "example.h"

namespace example {
namespace {

constexpr std::size_t kRunning = 8;

}  // namespace

Scheduler::Scheduler(const moetap::Endpoint& endpoint,
                     std::unique_ptr<moetap::SlotReadTransport> transport, std::uint64_t seed,
                     const std::string& rows)
    : max_tokens_(endpoint.max_tokens),
      block_size_(kBlockSize),
      reader_(std::move(transport)),
      ledger_(endpoint.num_slots / kBlockSize, kBlockSize),
      blocks_(endpoint.num_slots / kBlockSize),
      random_(seed),
      rows_(rows, std::ios::binary) {
  for (int number = kSequences; number-- > 0;) free_numbers_.push_back(number);
}

void Scheduler::run(std::vector<Request> requests, std::ostream& orders, std::istream& answers) {
  orders_ = &orders;
  answers_ = &answers;
  waiting_.assign(std::make_move_iterator(requests.begin()),
                  std::make_move_iterator(requests.end()));
  while (!waiting_.empty() || !running_.empty()) {
    reader_.poll();
    start_waiting();
    const std::vector<Chunk> chunks = plan_step();
    send(chunks);
    take_answer(chunks);
    end_finished();
  }
  orders << "end" << std::endl;
}

// A request starts if its first chunk fits without anybody being preempted.
void Scheduler::start_waiting() {
  while (!waiting_.empty() && running_.size() < kRunning) {
    const auto first = std::min<std::int64_t>(
        max_tokens_, static_cast<std::int64_t>(waiting_.front().tokens.size()));
    if (!make_room(static_cast<std::size_t>(first / block_size_ + 1))) return;
    Request request = std::move(waiting_.front());
    waiting_.pop_front();
    start(std::move(request));
  }
}

void Scheduler::start(Request request) {
  Running running{.request = std::move(request), .sequence = {.number = free_sequence()}};
  auto& [made, sequence] = running;
  std::size_t length = 0;
  if (const Sequence* donor = longest_prefix(made.tokens, length)) {
    const auto tokens = static_cast<std::ptrdiff_t>(length);
    sequence.tokens.assign(donor->tokens.begin(), donor->tokens.begin() + tokens);
    sequence.blocks.assign(donor->blocks.begin(), donor->blocks.begin() + tokens / block_size_);
    for (const moetap::BlockId block : sequence.blocks) blocks_.share(block);
    *orders_ << "copy " << donor->number << ' ' << sequence.number << ' ' << length << '\n';
    ++counts_["hits"];
    counts_["tokens hit"] += tokens;
  }
  const moetap::Placement placement{.blocks = sequence.blocks,
                                    .cached = static_cast<std::int64_t>(length)};
  if (std::exchange(made.started, true)) {
    ledger_.resume(made.id, placement);
  } else {
    ledger_.admit({.request = made.id,
                   .num_tokens = static_cast<std::int64_t>(made.tokens.size()),
                   .placement = placement});
  }
  running_.push_back(std::move(running));
}

// The sequence that has most of these tokens computed in whole blocks. At least one token is left
// to compute: the next token is sampled from it.
const Scheduler::Sequence* Scheduler::longest_prefix(const std::vector<std::int32_t>& tokens,
                                                     std::size_t& length) const {
  const Sequence* best = nullptr;
  const auto consider = [&](const Sequence& other) {
    const std::size_t most = std::min(other.tokens.size(), tokens.size() - 1);
    std::size_t same = 0;
    while (same < most && other.tokens[same] == tokens[same]) ++same;
    same -= same % static_cast<std::size_t>(block_size_);
    if (same <= length) return;
    length = same;
    best = &other;
  };
  for (const Sequence& sequence : cached_) consider(sequence);
  for (const Running& running : running_) consider(running.sequence);
  return best;
}

std::vector<Scheduler::Chunk> Scheduler::plan_step() {
  ++step_;
  std::vector<Chunk> chunks;
  std::int64_t left = max_tokens_;
  for (auto running = running_.begin(); running != running_.end() && left > 0;) {
    auto& [request, sequence] = *running;
    const std::int64_t first = static_cast<std::int64_t>(sequence.tokens.size());
    const std::int64_t pending = static_cast<std::int64_t>(request.tokens.size()) - first;
    const std::int64_t count = std::min(pending, left);
    std::vector<moetap::BlockId> added;
    if (!reserve(*running, first + count, added)) break;  // it was the youngest, and is preempted
    ledger_.schedule(moetap::Step(step_), request.id, {first, first + count}, added);
    chunks.push_back({request.id, count, count == pending});
    if (count < pending) ++counts_["chunks"];
    left -= count;
    ++running;
  }
  return chunks;
}

// Blocks for the sequence's first `tokens`. Whoever is younger makes room, or the request itself.
bool Scheduler::reserve(Running& running, std::int64_t tokens,
                        std::vector<moetap::BlockId>& added) {
  const auto needed = static_cast<std::size_t>((tokens + block_size_ - 1) / block_size_);
  auto& blocks = running.sequence.blocks;
  while (needed > blocks.size() && !make_room(needed - blocks.size())) {
    const bool itself = &running_.back() == &running;
    preempt_youngest();
    if (itself) return false;
  }
  while (blocks.size() < needed) {
    added.push_back(blocks_.take());
    blocks.push_back(added.back());
  }
  return true;
}

void Scheduler::send(const std::vector<Chunk>& chunks) {
  *orders_ << "step " << step_ << ' ' << chunks.size() << '\n';
  auto running = running_.begin();
  for (const Chunk& chunk : chunks) {
    const auto& [request, sequence] = *running++;
    const std::size_t first = sequence.tokens.size();
    const moetap::TokenRange positions{static_cast<std::int64_t>(first),
                                       static_cast<std::int64_t>(first) + chunk.count};
    *orders_ << sequence.number << ' ' << first << ' ' << chunk.samples << ' ' << chunk.count;
    for (std::int64_t i = 0; i < chunk.count; ++i) {
      *orders_ << ' ' << request.tokens[first + static_cast<std::size_t>(i)];
    }
    for (const moetap::Slot slot : moetap::slots_of(sequence.blocks, block_size_, positions)) {
      *orders_ << ' ' << slot.value();
    }
    *orders_ << '\n';
  }
  orders_->flush();
  ++counts_["steps"];
}

void Scheduler::take_answer(const std::vector<Chunk>& chunks) {
  std::istringstream sampled(answer());
  sampled.exceptions(std::ios::failbit);
  auto running = running_.begin();
  for (const Chunk& chunk : chunks) {
    auto& [request, sequence] = *running++;
    const auto first = request.tokens.begin() + static_cast<std::ptrdiff_t>(sequence.tokens.size());
    sequence.tokens.insert(sequence.tokens.end(), first, first + chunk.count);
    counts_["tokens computed"] += chunk.count;
    if (request.patience > 0) request.gives_up = --request.patience == 0;
    if (!chunk.samples) continue;
    std::int32_t token = 0;
    sampled >> token;
    request.tokens.push_back(token);
    ledger_.accept(moetap::Step(step_), request.id,
                   static_cast<std::int64_t>(request.tokens.size()));
  }
}

void Scheduler::end_finished() {
  for (auto running = running_.begin(); running != running_.end();) {
    const Request& request = running->request;
    const bool finished = request.tokens.size() >= request.length;
    if (!finished && !request.gives_up) {
      ++running;
      continue;
    }
    over(*running,
         finished ? ledger_.finish(request.id, static_cast<std::int64_t>(request.tokens.size()))
                  : ledger_.abort(request.id));
    ++counts_[finished ? "finished" : "aborts"];
    running = running_.erase(running);
  }
}

// Reads the request's rows, and has the worker write down what it computed.
void Scheduler::over(Running& running, const moetap::RowPlan& plan) {
  const moetap::Routes routes = moetap::read_rows(reader_, plan, std::chrono::seconds(30));
  const moetap::ModelShape& shape = routes.shape();
  const auto write = [this](auto number) {
    rows_.write(reinterpret_cast<const char*>(&number), sizeof number);
  };
  write(static_cast<std::int64_t>(running.request.id.value()));
  write(routes.range().size());
  for (std::int64_t position = routes.range().start; position < routes.range().end; ++position) {
    const bool present = routes.state(position) == moetap::RowState::present;
    for (int layer = 0; layer < shape.num_layers(); ++layer) {
      for (int k = 0; k < shape.top_k(); ++k) {
        write(present ? static_cast<std::int32_t>(routes.id(position, layer, k)) : -1);
      }
    }
  }
  *orders_ << "over " << running.request.id.value() << ' ' << running.sequence.number << ' '
           << routes.range().size() << std::endl;
  (void)answer();
  keep_cached(std::move(running.sequence));
}

bool Scheduler::make_room(std::size_t blocks) {
  while (blocks_.free() < blocks && !cached_.empty()) {
    drop(cached_.front());
    cached_.pop_front();
  }
  return blocks_.free() >= blocks;
}

// Half of the preempted sequences stay cached, as long as there is room.
void Scheduler::preempt_youngest() {
  Running running = std::move(running_.back());
  running_.pop_back();
  ledger_.preempt(running.request.id);
  ++counts_["preemptions"];
  if (random_() % 2 == 0) {
    keep_cached(std::move(running.sequence));
  } else {
    drop(running.sequence);
  }
  waiting_.push_front(std::move(running.request));
}

// Only whole blocks: the next tokens of the last one would be another request's.
void Scheduler::keep_cached(Sequence sequence) {
  const std::size_t whole = sequence.tokens.size() / static_cast<std::size_t>(block_size_);
  while (sequence.blocks.size() > whole) {
    blocks_.give_back(sequence.blocks.back());
    sequence.blocks.pop_back();
  }
  sequence.tokens.resize(whole * static_cast<std::size_t>(block_size_));
  *orders_ << "keep " << sequence.number << ' ' << sequence.tokens.size() << '\n';
  if (whole > 0) {
    cached_.push_back(std::move(sequence));
  } else {
    free_numbers_.push_back(sequence.number);
  }
}

void Scheduler::drop(Sequence& sequence) {
  for (const moetap::BlockId block : sequence.blocks) blocks_.give_back(block);
  *orders_ << "keep " << sequence.number << " 0\n";
  free_numbers_.push_back(sequence.number);
}

int Scheduler::free_sequence() {
  if (free_numbers_.empty()) {
    drop(cached_.front());
    cached_.pop_front();
  }
  const int number = free_numbers_.back();
  free_numbers_.pop_back();
  return number;
}

std::string Scheduler::answer() {
  std::string line;
  if (!std::getline(*answers_, line)) throw std::runtime_error("the worker has ended");
  return line;
}

}  // namespace example
