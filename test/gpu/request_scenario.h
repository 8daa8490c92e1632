// A pretended engine's requests: chunked prefill, decode with rejected draft tokens, prefix hits,
// preemption and abortion, the same in any process that asks with the same seed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <vector>

#include "test/gpu/scenario.h"

namespace moetap::test {

struct RequestScenario {
  explicit RequestScenario(std::uint64_t seed, Router router);

  // What the engine says about requests after a step.
  struct End {
    RequestId request = 0;
    RequestEnd how = RequestEnd::finished;
  };
  // What a finished request's positions [0, size) must be: the bytes, or nothing if missing.
  struct Finished {
    RequestId request = 0;
    std::vector<std::optional<std::vector<std::byte>>> rows;
    bool asked = true;  // a published step wanted a row of it: else nothing is handed over
  };

  Scenario scenario;                   // the steps
  std::vector<std::vector<End>> ends;  // after each
  std::vector<Finished> finished;      // in the order of their ends

 private:
  struct Running {
    bool wants = true;
    bool asked = false;         // there was a published step since, so that the worker knows
    std::int64_t position = 0;  // up to which its tokens are computed and accepted
    std::map<std::int64_t, std::optional<std::vector<std::byte>>> rows;
  };

  ScenarioStep draw_step(Step number);
  void add_span(ScenarioStep& step, RequestId request, Running& running);
  std::vector<End> draw_ends();
  void finish(RequestId request, const Running& running);

  std::mt19937_64 random_;
  std::map<RequestId, Running> running_;
  std::uint64_t last_request_ = 0;
};

}  // namespace moetap::test
