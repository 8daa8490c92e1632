#include "test/gpu/request_scenario.h"

#include <algorithm>
#include <utility>

namespace moetap::test {

RequestScenario::RequestScenario(std::uint64_t seed, Router router)
    : scenario(std::move(router), {}), random_(seed) {
  for (Step number = 1; number <= 80; ++number) {
    scenario.steps.push_back(draw_step(number));
    ends.push_back(draw_ends());
  }
  for (const auto& [request, running] : running_) {
    ends.back().push_back({request, RequestEnd::finished});
    finish(request, running);
  }
}

ScenarioStep RequestScenario::draw_step(Step number) {
  ScenarioStep step{.step = number, .wanted = std::vector<TokenRange>{}};
  constexpr Trouble kTroubles[] = {Trouble::layer_missing, Trouble::bad_id, Trouble::bad_slot};
  if (random_() % 10 == 0) step.trouble = kTroubles[random_() % 3];
  while (running_.size() < 4) {
    // A prefix hit: its first tokens are not computed.
    Running& started = running_[RequestId(++last_request_)];
    started.position = random_() % 3 == 0 ? 20 : 0;
    started.wants = random_() % 3 != 0;
  }
  for (auto& [request, running] : running_) {
    if (random_() % 4 != 0) add_span(step, request, running);
  }
  // What it was before anybody could opt in, where all do.
  if (step.wanted->size() == step.requests.size()) step.wanted.reset();
  step.padded_tokens = step.num_tokens;
  step.dp_tokens = {0, step.num_tokens, 0};
  for (std::int64_t i = 0; i < step.num_tokens; ++i) step.slots.emplace_back(i * 2);
  if (step.num_tokens == 0) step.trouble = Trouble::none;
  if (step.trouble == Trouble::bad_slot && step.wants_any()) {
    const std::int64_t end = step.wanted ? step.wanted->back().end : step.num_tokens;
    step.slots[static_cast<std::size_t>(end - 1)] = Slot(Scenario::kSlots);
  }
  return step;
}

void RequestScenario::add_span(ScenarioStep& step, RequestId request, Running& running) {
  const std::int64_t left = Scenario::kMaxTokens - step.num_tokens;
  const std::int64_t count = std::min<std::int64_t>(left, 1 + static_cast<int>(random_() % 9));
  if (count == 0) return;
  step.requests.push_back({request, running.position, count});
  if (running.wants) {
    step.wanted->push_back({step.num_tokens, step.num_tokens + count});
    running.asked = true;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t row = step.num_tokens + i;
    auto& kept = running.rows[running.position + i];
    kept.reset();
    if (step.trouble == Trouble::none && !scenario.router.misses_route(step.step, row)) {
      kept = scenario.router.row(step.step, row);
    }
  }
  step.num_tokens += count;
  // Some of the tokens were drafts that are rejected, and are computed again.
  running.position += random_() % 3 == 0 ? 1 + static_cast<int>(random_() % count) : count;
}

std::vector<RequestScenario::End> RequestScenario::draw_ends() {
  std::vector<End> drawn;
  for (auto& [request, running] : running_) {
    switch (random_() % 16) {
      case 0:
        drawn.push_back({request, RequestEnd::finished});
        finish(request, running);
        break;
      case 1:
        drawn.push_back({request, RequestEnd::preempted});
        running.rows.clear();  // and from here on shorter: the next hit covers what was computed
        running.position = random_() % 2 == 0 ? 10 : 0;
        break;
      case 2:
        drawn.push_back({request, RequestEnd::aborted});
        break;
      default:
        break;
    }
  }
  for (const End& end : drawn) {
    if (end.how != RequestEnd::preempted) running_.erase(end.request);
  }
  return drawn;
}

void RequestScenario::finish(RequestId request, const Running& running) {
  Finished done{.request = request, .rows = {}, .asked = running.asked};
  for (std::int64_t position = 0; position < running.position; ++position) {
    const auto row = running.rows.find(position);
    done.rows.push_back(row == running.rows.end() ? std::nullopt : row->second);
  }
  finished.push_back(std::move(done));
}

}  // namespace moetap::test
