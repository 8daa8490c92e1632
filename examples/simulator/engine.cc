#include "engine.h"

#include <moetap/error.h>
#include <moetap/readers.h>

#include <chrono>

namespace demo {
namespace {

// How often a waiting scheduler looks whether its worker has died or it was interrupted.
constexpr moetap::Milliseconds kLook{200};

// Returns the name of the worker's device, once its end of the transport is there.
std::string start(WorkerProcess& worker, const WorkerConfig& config) {
  const std::string text = encode(config);
  worker.send(Message::configure, std::as_bytes(std::span(text)));
  return to_text(worker.expect(Message::ready));
}

std::unique_ptr<moetap::SlotReadTransport> make_reader(const WorkerConfig& config) {
  return config.transport == TransportKind::shm ? moetap::make_shm_reader(config.endpoint)
                                                : moetap::make_device_reader(config.endpoint);
}

}  // namespace

Engine::Engine(WorkerProcess& worker, const WorkerConfig& config, Scheduler& scheduler)
    : worker_(worker),
      scheduler_(scheduler),
      limit_(config.endpoint.limit),
      device_(start(worker, config)),
      reader_(make_reader(config)),
      verifier_(config.endpoint.shape) {}

EngineResult Engine::run(Progress& progress) {
  for (Step step = 1; !scheduler_.done();) {
    if (progress.stop) throw Interrupted();
    const StepPlan& plan = scheduler_.plan(step);
    if (plan.empty()) {
      read_finished(progress);  // they hold the blocks that the rest needs
    } else {
      run_step(plan, progress);
      ++step;
    }
  }
  read_finished(progress);
  result_.device = device_;
  result_.counts = scheduler_.counts();
  result_.rows = verifier_.counts();
  return std::move(result_);
}

void Engine::run_step(const StepPlan& plan, Progress& progress) {
  encode(plan, message_);
  worker_.send(Message::plan, message_);
  read_finished(progress);

  const std::int64_t waiting_since = monotonic_ns();
  wait_visible(plan.step, progress);
  const std::int64_t visible = monotonic_ns();
  const StepReply reply = decode_reply(worker_.expect(Message::reply));
  if (reply.times.step != plan.step) {
    throw moetap::MismatchError("a worker answered for another step than it was given");
  }
  result_.worker_overhead_us.push_back(static_cast<double>(reply.times.moetap_ns) / 1000);
  if (waiting_since <= reply.times.forward_end_ns) {
    result_.visible_latency_us.push_back(static_cast<double>(visible - reply.times.forward_end_ns) /
                                         1000);
  }
  scheduler_.complete(reply.sampled);
}

void Engine::read_finished(Progress& progress) {
  while (!scheduler_.finished().empty()) {
    result_.read_us_per_request.push_back(
        verifier_.read_and_check(reader_, *scheduler_.finished().front(), scheduler_.cache()));
    scheduler_.release_finished();
    ++progress.finished;
  }
}

void Engine::wait_visible(Step step, Progress& progress) {
  const auto deadline = std::chrono::steady_clock::now() + limit_;
  for (;;) {
    try {
      return reader_.wait_for(step, kLook);
    } catch (const moetap::TimeoutError&) {
      if (progress.stop) throw Interrupted();
      worker_.check();
      if (std::chrono::steady_clock::now() >= deadline) throw;
    }
  }
}

}  // namespace demo
