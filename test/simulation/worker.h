// What a simulated scheduler sees of its worker.
#pragma once

#include <moetap/step.h>

#include <span>
#include <vector>

#include "test/simulation/oracle.h"

namespace moetap::simulation {

// The tokens of a step, in order.
struct StepWork {
  Step step = 0;
  SlotRows rows{};
  std::vector<RequestSpan> requests{};
  std::vector<TokenRange> wanted{};  // of the tokens, those whose rows are wanted
};

class Worker {
 public:
  virtual ~Worker() = default;

  // Runs and publishes the step. False: not now, since it waits for the scheduler; call again with
  // the same one.
  virtual bool run(const StepWork& step) = 0;
  // As Capturer::accept; matters to a worker that keeps rows by request.
  virtual void accept(Step step, RequestId request, std::int64_t num_tokens,
                      std::span<const std::int64_t> accepted) = 0;
  // The request is over after all steps so far; matters to a worker that keeps rows by request.
  virtual void end_request(RequestId request, RequestEnd how) = 0;
  // Some time passes.
  virtual void go_on() = 0;
};

}  // namespace moetap::simulation
