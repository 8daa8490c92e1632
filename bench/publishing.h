// The worker's end of a transport in a benchmark, with a scheduler if it needs one.
#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>

#include "bench/endpoint.h"
#include "bench/scheduler.h"
#include "bench/worker.h"
#include "bench/workload.h"

namespace moetap::bench {

struct Publishing {
  Publishing(const std::string& transport, const char* model)
      : Publishing(transport, endpoint(ModelShape::known(model))) {}
  Publishing(const std::string& transport, const Endpoint& endpoint) {
    if (transport == "device") scheduler.emplace(transport, endpoint);
    worker.emplace(transport, endpoint);
    for (std::uint64_t i = 0; i < kWorkingSet / kMaxTokens; ++i) step(i, kMaxTokens);
  }

  // Returns the seconds that publishing took.
  double step(std::uint64_t i, std::int64_t tokens,
              std::optional<std::span<const TokenRange>> wanted = {}) {
    const Step number = worker->forward(tokens, wanted);
    const auto start = Scheduler::Clock::now();
    worker->publish(SlotMappings::offset(i, tokens));
    const std::chrono::duration<double> took = Scheduler::Clock::now() - start;
    // Waits until the ring is empty again, as it would be after a real forward pass.
    if (scheduler && !(wanted && wanted->empty())) scheduler->wait(number);
    return took.count();
  }

  std::optional<Scheduler> scheduler;
  std::optional<Worker> worker;
};

}  // namespace moetap::bench
