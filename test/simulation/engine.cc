#include "test/simulation/engine.h"

#include <moetap/error.h>

#include <algorithm>
#include <utility>

namespace moetap::simulation {

EngineOptions EngineOptions::draw(Dice& dice) {
  EngineOptions options;
  options.num_blocks = static_cast<int>(10 + dice.draw(14));
  options.depth = static_cast<int>(1 + dice.draw(3));
  options.most_drafts = static_cast<int>(dice.chance(60) ? 1 + dice.draw(2) : 0);
  options.reading = static_cast<Reading>(dice.draw(3));
  options.publish_all = dice.chance(50);
  options.trees = options.most_drafts > 0 && dice.chance(50);
  if (options.trees) options.most_drafts += static_cast<int>(dice.draw(2));
  options.keeps = dice.chance(50);
  options.guess = static_cast<Guess>(dice.draw(2));
  return options;
}

Engine::Engine(EngineOptions options, Parts parts)
    : options_(options),
      dice_(parts.dice),
      counts_(parts.counts),
      history_(parts.history),
      trace_(parts.trace),
      oracle_(parts.oracle),
      worker_(parts.worker),
      store_(parts.store),
      stored_(parts.stored),
      take_(std::move(parts.take)),
      go_on_elsewhere_(std::move(parts.go_on_elsewhere)),
      ledger_(trace_, options.num_blocks, kBlock, options.drafts()),
      reader_(trace_, std::move(parts.reader)),
      pending_(trace_, ledger_, reader_),
      blocks_(static_cast<std::size_t>(options.num_blocks)) {}

void Engine::finish() {
  drain();
  until("a put", [this] {
    while (!puts_.empty() && is_ready(puts_.front())) do_put();
    return puts_.empty();
  });
  while (!requests_.empty()) abort(requests_.begin()->second);
  while (!reads_.empty()) collect(0);
  drop_views();
  require(ledger_.num_wanting() == 0, "{} requests are left in the ledger", ledger_.num_wanting());
  require(pending_.size() == 0, "{} requests' rows are left waiting", pending_.size());
  for (int i = 0; i < options_.num_blocks; ++i) {
    const BlockId id(i);
    require(!ledger_.held(id), "block {} is still held", id);
    require(block(id).users == 0, "block {} is still in use", id);
  }
}

void Engine::tick() {
  if (!waiting_.empty() && requests_.size() < 6 && arrive_from_elsewhere(waiting_.front())) {
    waiting_.pop_front();
  }
  if (requests_.size() < 5 && chance(60)) arrive();
  for (auto& [id, request] : requests_) {
    if (!request.run && chance(50)) place(request, true, 0);
  }
  if (!options_.per_request) {
    if (chance(10)) move();
    if (chance(6)) copy();
    if (chance(3)) flush();
    if (chance(5)) forget();
    if (chance(10)) offload();
  }
  if (static_cast<int>(in_flight_.size()) < options_.depth) schedule();
  if (!in_flight_.empty() && chance(10)) await();
  if (options_.trees && !in_flight_.empty() && chance(40)) look_ahead();
  while (static_cast<int>(in_flight_.size()) >= options_.depth ||
         (!in_flight_.empty() && chance(30))) {
    if (!land()) break;
  }
  if (chance(40)) reader_.poll();
  while (!puts_.empty() && is_ready(puts_.front()) && chance(60)) do_put();
  for (auto& [id, request] : requests_) {
    if (request.wants_rows && !options_.per_request && chance(15)) ask(request);
  }
  if (!requests_.empty() && chance(4)) {
    Request& request = dice_.any_of(requests_).second;
    const bool finishes = !request.run && size(request.tokens) > request.start;
    finishes ? finish(request) : abort(request);
    counts_[Event::finished_preempted] += finishes;
  }
  if (chance(50)) drop_views();
  if (!reads_.empty() && chance(50)) {
    collect(static_cast<std::size_t>(draw(static_cast<std::int64_t>(reads_.size()) - 1)));
  }
}

void Engine::let_go_on() {
  drop_views();
  worker_.go_on();
  reader_.poll();
}

void Engine::schedule() {
  InFlight step;
  step.step = step_ + 1;
  scheduled_.clear();
  for (auto& [id, request] : requests_) {
    if (!request.run || chance(15)) continue;
    Work work = next_work(request);
    std::vector<BlockId> fresh;
    const std::int64_t reach = std::max(request.reach, request.computed) + work.positions.size();
    if (work.positions.size() == 0 || !give_blocks(request, reach, fresh)) continue;
    for (const BlockId fresh_id : fresh) request.blocks.push_back(fresh_id);
    ledger_.schedule(step.step, id, work.positions, fresh);
    history_.note("step {}: positions [{}, {}) of request {}", step.step, work.positions.start,
                  work.positions.end, id);
    work.blocks = request.blocks;
    set_rows(request, work, step.step);
    request.computed = guess_end(work);
    if (options_.trees && chance(15)) guess_low(request, work, step.step);
    request.reach = reach;
    request.known_to_worker = true;
    if (work.prefill) cache(request, request.computed);
    scheduled_.insert(id);
    step.work.push_back(std::move(work));
  }
  if (step.work.empty()) return;
  step_ = step.step;
  in_flight_.push_back(std::move(step));
}

// Also while the worker has not sampled the tokens yet.
Engine::Work Engine::next_work(const Request& request) {
  Work work;
  work.request = request.id;
  work.run = request.run;
  work.wants_rows = request.wants_rows;
  work.prefill = request.computed < request.run->prefill;
  std::int64_t tokens = 0;
  if (work.prefill) {
    tokens = 1 + draw(std::min<std::int64_t>(6, request.run->prefill - request.computed) - 1);
  } else if (request.computed < request.most - 1) {
    tokens = 1 + draw(options_.most_drafts);
  }
  work.positions = {request.computed, request.computed + tokens};
  return work;
}

// Preempts others who are not in this step yet, if it must.
bool Engine::give_blocks(Request& request, std::int64_t end, std::vector<BlockId>& fresh) {
  const auto have = static_cast<std::int64_t>(request.blocks.size());
  const std::int64_t more = std::max<std::int64_t>(0, (end + kBlock - 1) / kBlock - have);
  while (!take_blocks(more, fresh)) {
    const auto victim = std::find_if(requests_.rbegin(), requests_.rend(), [&](const auto& other) {
      return other.second.run && other.first != request.id && !scheduled_.contains(other.first);
    });
    if (victim == requests_.rend()) return false;
    preempt(victim->second);
  }
  return true;
}

void Engine::set_rows(Request& request, Work& work, Step step) {
  if (static_cast<std::int64_t>(request.rows.size()) < work.positions.end) {
    request.rows.resize(static_cast<std::size_t>(work.positions.end));
  }
  request.known = std::max(request.known, work.positions.end);
  work.rows.clear();
  for (std::int64_t p = 0; p < std::ssize(request.rows); ++p) uncover(request, p, step);
  const std::int64_t first = std::max(request.run->prefill, size(request.tokens) - 1);
  for (std::int64_t p = work.positions.start; p < work.positions.end; ++p) {
    work.rows.push_back(oracle_.make(step));
    if (!work.prefill && p < first) continue;  // it cannot begin there
    if (request.wants_rows) {
      cover(request, p, work.rows.back());
    } else {
      at(oracle_.belongs, slot_of(request.blocks, p)) = nullptr;
    }
  }
}

// Where the next step begins.
std::int64_t Engine::guess_end(const Work& work) {
  using enum EngineOptions::Guess;
  if (work.prefill || options_.guess == all) return work.positions.end;
  const std::int64_t drafts = work.positions.size() - 1;
  return work.positions.start + 1 + (options_.guess == none ? 0 : draw(drafts));
}

// The oldest step runs; false if its worker cannot go on.
bool Engine::land() {
  if (!in_flight_.front().begun) begin(in_flight_.front());
  if (!in_flight_.front().ran && !worker_.run(*in_flight_.front().begun)) return false;
  const InFlight step = std::move(in_flight_.front());
  in_flight_.pop_front();
  for (const auto& told : step.told) told();
  moved_as_ = 0;
  for (const Work& work : step.work) output(work, step.step);
  return true;
}

void Engine::begin(InFlight& step) {
  StepWork& begun = step.begun.emplace();
  begun.step = step.step;
  for (Work& work : step.work) {
    run_work(work, step.step);
    const bool drafts = options_.trees && options_.declares && !work.prefill;
    begun.requests.push_back({work.request, work.positions.start, work.positions.size(),
                              drafts ? work.positions.size() - 1 : 0});
    const auto first = static_cast<std::int64_t>(begun.rows.size());
    for (std::int64_t p = work.positions.start; p < work.positions.end; ++p) {
      begun.rows.emplace_back(slot_of(work.blocks, p), at(work.rows, p - work.positions.start));
    }
    if (!work.wants_rows && !options_.publish_all) continue;
    const auto end = static_cast<std::int64_t>(begun.rows.size());
    if (!begun.wanted.empty() && begun.wanted.back().end == first) {
      begun.wanted.back().end = end;
    } else {
      begun.wanted.push_back({first, end});
    }
  }
}

// The scheduler waits for its last step with a real limit, while its worker runs one after the
// other. Not where drafts let only the scheduler say where a step begins (see correct()), nor
// for a step that is never published.
void Engine::await() {
  if (!options_.joined || options_.most_drafts > 0) return;
  const InFlight& last = in_flight_.back();
  const auto published = [this](const Work& work) {
    return work.wants_rows || options_.publish_all;
  };
  if (!std::ranges::any_of(last.work, published)) return;
  ++counts_[Event::waits_with_limit];
  drop_views();
  waits_ = true;
  try {
    reader_.wait_for(last.step, Milliseconds(5000));
  } catch (const StepFailed&) {
  } catch (const TimeoutError& error) {
    throw Failure(fmt::format("deadlock: {}", error.what()));
  }
  waits_ = false;
}

void Engine::meanwhile() {
  if (!waits_) return;
  worker_.go_on();
  for (InFlight& step : in_flight_) {
    if (!step.begun) begin(step);
    step.ran = step.ran || worker_.run(*step.begun);
    if (!step.ran) return;
  }
}

void Engine::run_work(Work& work, Step step) {
  Run& run = *work.run;
  if (work.prefill) {
    run.next = work.positions.end;
    return;
  }
  if (run.over && work.positions.start != run.next) {  // its scheduler was not told any more
    work.positions = {run.next, run.next + work.positions.size()};
    for (RowRef& row : work.rows) row = oracle_.make(step);
  }
  require(work.positions.start == run.next, "request {} computes position {} where {} is next",
          work.request, work.positions.start, run.next);
  work.accepted = draw(work.positions.size() - 1);
  if (options_.trees) {
    work.path = draw_path(work.positions.size());
    work.accepted = size(work.path) - 1;
  }
  run.next += 1 + work.accepted;
}

void Engine::stand(Request& request, std::int64_t position, const RowRef& row) {
  if (std::ssize(request.standing) <= position) {
    request.standing.resize(static_cast<std::size_t>(position) + 1);
  }
  at(request.standing, position) = row;
}

void Engine::output(const Work& work, Step step) {
  const std::int64_t stands = work.prefill ? work.positions.size() : 1 + work.accepted;
  for (std::int64_t i = 0; !work.run->over && i < stands; ++i) {
    const std::int64_t token = work.path.empty() ? i : work.path[static_cast<std::size_t>(i)];
    stand(requests_.at(work.request), work.positions.start + i, at(work.rows, token));
  }
  const bool samples = !work.prefill || work.positions.end == work.run->prefill;
  if (!samples) return;
  if (work.run->over) return output_late(work, step);
  Request& request = requests_.at(work.request);
  const std::int64_t tokens = std::min(1 + work.accepted, request.most - size(request.tokens));
  for (std::int64_t i = 0; i < tokens; ++i) request.tokens.push_back(static_cast<int>(draw(1)));
  if (!work.prefill) counts_[Event::rejected] += work.positions.size() - 1 - work.accepted;
  if (options_.trees && !work.prefill) {
    accept_tree(request, work, step);
  } else {
    ledger_.accept(step, request.id, size(request.tokens));
  }
  // What steps so far computed of tokens that do not stand is no row of anything.
  for (std::int64_t p = size(request.tokens) - 1; p < std::ssize(request.rows); ++p) {
    RowRef& row = at(request.rows, p);
    if (!row || row->computed > step) continue;
    RowRef& belongs = at(oracle_.belongs, slot_of(request.blocks, p));
    if (belongs == row) belongs = nullptr;
    row = nullptr;
  }
  std::erase_if(request.covered, [&](const auto& covered) {
    return covered.first >= size(request.tokens) - 1 && covered.second->computed <= step;
  });
  settle_guesses(request);
  if (size(request.tokens) == request.most) return finish(request);
  correct(request, true);
  cache(request, size(request.tokens) - 1);
}

// The step of the request's that runs next begins where this one really ended. Where the others
// begin may be guessed again.
void Engine::correct(Request& request, bool landed) {
  request.computed = request.reach = request.run->next;
  bool next = true;
  for (InFlight& step : in_flight_) {
    if (step.begun) continue;  // run.next counts it already
    for (Work& work : step.work) {
      if (work.run != request.run) continue;
      if (work.positions.start != request.computed) {
        if (next) {
          correct(request, work, step.step, landed);
        } else if (options_.guess != EngineOptions::Guess::all && chance(60)) {
          guess_again(request, work, step.step);
        }
      }
      next = false;
      request.reach += work.positions.size();
      // Not past where the steps end if all drafts stand: a step that is not corrected may lie
      // there.
      const std::int64_t end = guess_end(work);
      if (!next && options_.trees && chance(15)) guess_low(request, work, step.step);
      request.computed = std::min(request.reach, std::max(request.computed + 1, end));
    }
  }
}

void Engine::guess_again(Request& request, Work& work, Step step) {
  const TokenRange positions{request.computed, request.computed + work.positions.size()};
  if (request.wants_rows && moved_since(request, positions, step)) return;
  work.positions = positions;
  ledger_.schedule(step, request.id, positions);
  set_rows(request, work, step);
  ++counts_[Event::guessed_again];
}

// Before tokens that are computed already, known ones too. A step is only known to be a guess if it
// or one before it has drafts.
void Engine::guess_low(Request& request, Work& work, Step step) {
  bool is_next = true;
  bool has_drafts = work.positions.size() > 1;
  for (const InFlight& earlier : in_flight_) {
    const auto found = std::ranges::find(earlier.work, work.run, &Work::run);
    if (earlier.step >= step || found == earlier.work.end()) continue;
    is_next = false;
    has_drafts |= !found->prefill && found->positions.size() > 1;
  }
  const std::int64_t start = work.positions.start - 1 - draw(6);
  const TokenRange positions{start, start + work.positions.size()};
  if (is_next || !has_drafts || work.prefill || start < 0) return;
  // A step whose tokens are all known may as well compute them again.
  if (positions.end <= size(request.tokens)) return;
  if (request.wants_rows && moved_since(request, positions, step)) return;
  try {
    ledger_.schedule(step, request.id, positions);
  } catch (const StateError&) {  // others have its blocks
    ++counts_[Event::refused_calls];
    return;
  }
  work.positions = positions;
  set_rows(request, work, step);
  ++counts_[Event::guessed_low];
}

// Of a tree, the ledger may not be told, or refuse to be told since blocks moved: it then knows
// none of the rows, once it knows that the step begins elsewhere.
void Engine::correct(Request& request, Work& work, Step step, bool landed) {
  const std::int64_t start = request.run->next;
  const TokenRange positions{start, start + work.positions.size()};
  const bool moved = request.wants_rows && moved_since(request, positions, step);
  if (moved) {
    require_refusal<StateError>("H30: a step whose blocks moved",
                                [&] { ledger_.schedule(step, request.id, positions); });
    ++counts_[Event::refused_calls];
    if (!landed) return;
  }
  work.told = !moved && (!options_.trees || !landed || options_.per_request || chance(85));
  if (options_.trees && landed) lose_rows(request, work.positions, step);
  work.positions = positions;
  if (work.told) {
    ledger_.schedule(step, request.id, positions);
    set_rows(request, work, step);
  }
  ++counts_[work.told ? Event::corrected : Event::misreported];
}

void Engine::drain() {
  while (!in_flight_.empty()) {
    until("a step", [this] { return land(); });
  }
}

}  // namespace moetap::simulation
