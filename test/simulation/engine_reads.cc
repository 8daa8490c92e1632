// When a simulated engine reads rows, and what it checks then.
#include <moetap/error.h>
#include <moetap/read_rows.h>

#include <algorithm>
#include <utility>

#include "test/simulation/engine.h"

namespace moetap::simulation {

// What is new since the last time, or any part of it.
void Engine::ask(Request& request) {
  const std::int64_t most = size(request.tokens) - 1;
  const bool all = !request.got || chance(30);
  const std::int64_t start =
      all ? request.kept + draw(most - request.kept) : request.got->range().end;
  const TokenRange range{start, std::max(start, std::min(most, request.known))};
  const RowPlan plan = ledger_.rows_since(request.id, start);
  require(plan.range == range, "rows since {} of request {} are [{}, {}), not [{}, {})", start,
          request.id, plan.range.start, plan.range.end, range.start, range.end);
  Routes routes = read_now(plan, expect(request, range));
  if (all) {
    request.got = std::move(routes);
  } else {
    request.got->append(routes);
    ++counts_[Event::appended];
  }
}

Oracle::Expected Engine::expect(const Request& request, TokenRange range) const {
  Oracle::Expected expected{{}, {}, flushed_};
  const auto room = static_cast<std::int64_t>(request.blocks.size()) * kBlock;
  const auto known = static_cast<std::int64_t>(request.rows.size());
  for (std::int64_t p = range.start; p < range.end; ++p) {
    if (p < room) expected.slots.push_back(slot_of(request.blocks, p));
    const bool has_row = p >= request.unkept && p < known && p < room;
    expected.rows.push_back(has_row ? at(request.rows, p) : nullptr);
    const RowRef stands = p < std::ssize(request.standing) ? at(request.standing, p) : nullptr;
    require(!stands || !expected.rows.back() || expected.rows.back()->number == stands->number,
            "position {} of request {} has the row of a token that does not stand", p, request.id);
  }
  return expected;
}

Oracle::Expected Engine::expect_block(BlockId id) const {
  Oracle::Expected expected{{}, {}, flushed_};
  for (Slot slot = first_slot(id, kBlock); slot < first_slot(id, kBlock) + kBlock; ++slot) {
    expected.slots.push_back(slot);
    expected.rows.push_back(at(oracle_.belongs, slot));
  }
  return expected;
}

// What has come by now, whether or not that is all.
Routes Engine::read_now(const RowPlan& plan, const Oracle::Expected& expected) {
  if (done_by(plan.last_step) && chance(30)) look_at(plan, expected);
  Routes routes =
      done_by(plan.last_step) ? read_rows(reader_, plan, kNow) : read_rows(reader_, plan);
  oracle_.check(expected, oracle_.states(expected), routes);
  count(routes);
  return routes;
}

void Engine::look_at(const RowPlan& plan, const Oracle::Expected& expected) {
  RoutesView view = view_rows(reader_, plan, fmt::format("request {}", plan.request), kNow);
  ++counts_[Event::views];
  views_.push_back({std::move(view), expected, oracle_.states(expected)});
}

// They show what they showed when they were made, whatever has happened since.
void Engine::drop_views() {
  for (View& seen : views_) {
    const bool lent = !seen.view.owned();
    const Routes routes = detach(reader_, std::move(seen.view));
    oracle_.check(seen.expected, seen.states, routes);
    counts_[Event::detached] += lent;
  }
  views_.clear();
}

void Engine::leave(const Request& request, RowPlan plan, Oracle::Expected expected) {
  Read read{std::move(plan), std::move(expected), {}, std::nullopt, {}};
  if (request.goes_on) {
    read.then = [this, tokens = request.tokens](Routes routes) {
      go_on_elsewhere_({tokens, std::move(routes)});
    };
  } else if (request.before) {
    read.then = [this, before = *request.before](const Routes& routes) { join(before, routes); };
  }
  if (options_.per_request) {
    // A worker hands over what it has of a request, but not that it has never heard of it.
    read.by_request = request.wants_rows && request.known_to_worker;
    for (std::int64_t p = read.plan.range.start; p < request.hits && p < read.plan.range.end; ++p) {
      at(read.expected.rows, p - read.plan.range.start) = nullptr;
    }
    if (read.by_request) reads_.push_back(std::move(read));
    return;
  }
  if (options_.reading == Reading::at_once) {
    return deliver(read, read_now(read.plan, read.expected));
  }
  if (options_.reading != Reading::careless) pending_.add(read.plan);
  read.at_end = oracle_.states(read.expected);
  reads_.push_back(std::move(read));
}

void Engine::collect(std::size_t index) {
  const Read read = std::move(reads_[index]);
  reads_.erase(reads_.begin() + static_cast<std::ptrdiff_t>(index));
  if (read.by_request) return take(read);
  if (options_.reading == Reading::careless) {
    return deliver(read, read_now(read.plan, read.expected));
  }
  std::optional<Routes> routes;
  until("a request's rows", [&] {
    try {
      routes = pending_.collect(read.plan.request, kNow);
    } catch (const TimeoutError&) {
      ++counts_[Event::waits_in_vain];
      if (!in_flight_.empty()) land();
    }
    return routes.has_value();
  });
  oracle_.check(read.expected, read.taken ? *read.taken : oracle_.states(read.expected), *routes);
  count(*routes);
  for (std::size_t i = 0; i < read.at_end.size(); ++i) {
    // Rows that were not asked for may still be on their way when others are put in their place.
    if (read.at_end[i] != RowState::present || options_.publish_all) continue;
    require(routes->states()[i] == RowState::present, "a row of request {} was lost that was held",
            read.plan.request);
  }
  deliver(read, std::move(*routes));
}

// What its run computed, unless it was lost: nothing of hits, and nothing of an earlier run.
void Engine::take(const Read& read) {
  std::optional<Routes> routes;
  until("the end of a request", [&] {
    routes = take_(read.plan.request, read.plan.range);
    if (routes && trace_.on()) {
      trace_.note("take", {{"request", to_json(read.plan.request)},
                           {"positions", to_json(read.plan.range)},
                           {"result", to_json(*routes)}});
    }
    if (!routes && !in_flight_.empty()) land();
    return routes.has_value();
  });
  std::vector<RowState> states;
  for (const RowRef& row : read.expected.rows) {
    const bool there = row != nullptr && !oracle_.lost(row);
    states.push_back(there ? RowState::present : RowState::missing);
  }
  oracle_.check(read.expected, states, *routes);
  count(*routes);
  ++counts_[Event::taken_by_request];
  deliver(read, std::move(*routes));
}

void Engine::deliver(const Read& read, Routes routes) {
  history_.note("request {} has {} of {} rows", read.plan.request, routes.count(RowState::present),
                routes.states().size());
  if (read.then) read.then(std::move(routes));
}

// The rows of a prefill and those of what came after it.
void Engine::join(Routes before, const Routes& routes) {
  ++counts_[Event::appended];
  const Routes first = before;
  if (first.range().size() > 0) {
    require_refusal<ArgumentError>("H28: rows that the request has already",
                                   [&] { before.append(first); });
  }
  before.append(routes);
  const TokenRange range{first.range().start, routes.range().end};
  require(before.range() == range, "joined rows are [{}, {}), not [{}, {})", before.range().start,
          before.range().end, range.start, range.end);
}

void Engine::count(const Routes& routes) {
  counts_[Event::present] += static_cast<std::int64_t>(routes.count(RowState::present));
  counts_[Event::missing] += static_cast<std::int64_t>(routes.count(RowState::missing));
  counts_[Event::stale] += static_cast<std::int64_t>(routes.count(RowState::stale));
  counts_[Event::clobbered] += static_cast<std::int64_t>(routes.count(RowState::clobbered));
}

}  // namespace moetap::simulation
