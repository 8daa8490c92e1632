#include <moetap/capturer.h>
#include <moetap/error.h>
#include <moetap/host_device.h>

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "test/crash/setup.h"

namespace moetap::crash {
namespace {

using Clock = std::chrono::steady_clock;

// A whole worker, as an engine has it: streams, the capture of each layer, the transport.
class Worker {
 public:
  Worker(const Setup& setup, std::uint32_t generation)
      : setup_(setup),
        generation_(generation),
        device_(make_host_device()),
        stream_(device_->make_stream()),
        topk_ids_(device_->allocate(static_cast<std::size_t>(setup.endpoint.max_tokens) * kRowIds *
                                    sizeof(std::int32_t))),
        slots_(
            device_->allocate(static_cast<std::size_t>(setup.endpoint.max_tokens) * sizeof(Slot))),
        capturer_(std::in_place, make_transport()) {
    for (const int layer : capturer_->shape().moe_layers()) capturer_->bind(layer);
  }

  void step(Step step, Shared& shared) {
    const std::vector<Slot> slots = slots_of_step(setup_.seed, step);
    const auto tokens = static_cast<std::int64_t>(slots.size());
    stream_->synchronize();  // the buffers are free again
    std::ranges::copy(slots, slots_.as<Slot>());
    const RequestSpan request{RequestId(step.value()), 0, tokens};
    const bool begun = until_done(shared, [&] {
      capturer_->begin_step({.step = step, .num_tokens = tokens, .requests = {&request, 1}},
                            *stream_);
    });
    if (!begun) return;
    for (const int layer : capturer_->shape().moe_layers()) {
      if (layer != 0 || !lacks_layer(step)) capture(layer, step, slots);
    }
    if (is_given_up(step)) {
      capturer_->give_up(nullptr, *stream_);  // before its slots are known
    } else {
      publish(shared);
    }
    if (setup_.kill.transport == Transport::request) {
      capturer_->end_request(RequestId(step.value()), RequestEnd::finished);
    }
  }

 private:
  std::unique_ptr<moetap::Transport> make_transport() {
    switch (setup_.kill.transport) {
      case Transport::device:
        return make_device_transport(*device_, setup_.endpoint);
      case Transport::request:
        return make_device_transport(*device_, setup_.endpoint,
                                     {.host_cache = HostCache::per_request});
      default:
        return make_shm_transport(*device_, setup_.endpoint);
    }
  }

  void capture(int layer, Step step, const std::vector<Slot>& slots) {
    const int top_k = capturer_->shape().top_k();
    auto* const start = topk_ids_.as<std::int32_t>() + setup_.endpoint.max_tokens * top_k * layer;
    auto* id = start;
    for (const Slot slot : slots) {
      const Row row = row_of(generation_, step, slot);
      const auto* const picks = row.data() + layer * top_k;
      id = std::copy(picks, picks + top_k, id);
    }
    capturer_->capture(layer,
                       {.data = start,
                        .type = IdType::int32,
                        .rows = static_cast<std::int64_t>(slots.size()),
                        .columns = top_k,
                        .row_stride = top_k},
                       *stream_);
  }

  void publish(Shared& shared) {
    until_done(shared, [&] {
      const auto began = Clock::now();
      capturer_->publish(slots_.as<Slot>(), *stream_);
      note(shared, Clock::now() - began);
    });
  }

  // A scheduler that is not there for a while is an error within the timeout, and may come back:
  // calls again after it. begin_step() has that error too, if the step before it was given up.
  // False if told to stop first.
  template <class Call>
  bool until_done(Shared& shared, Call&& call) {
    while (!shared.stop) {
      const auto began = Clock::now();
      try {
        call();
        for (const StepFailed& failed : capturer_->take_failures()) {
          if (!fails(failed.step())) wrong(setup_, failed.what());
        }
        return true;
      } catch (const TimeoutError& error) {
        check_in_time(setup_, began, error.what());
        note(shared, Clock::now() - began);
        ++shared.timeouts;
      }
    }
    return false;
  }

  static void note(Shared& shared, Clock::duration time) {
    const double ns = std::chrono::duration<double, std::nano>(time).count();
    const double place = 8 * std::log2(std::max(ns, 1.0));
    ++shared.publish_times[std::min(static_cast<std::size_t>(place), Shared::kTimes - 1)];
  }

  const Setup& setup_;
  std::uint32_t generation_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  Buffer topk_ids_;  // int32 [layer][token][top_k]
  Buffer slots_;
  std::optional<Capturer> capturer_;
};

}  // namespace

void run_worker(const Setup& setup, Shared& shared, std::uint32_t generation, Step most_steps,
                bool arm_at_once) {
  if (arm_at_once) arm();
  Worker worker(setup, generation);
  for (Step step = 1; step <= most_steps && !shared.stop; ++step) {
    worker.step(step, shared);
    usleep(100);  // the reader keeps up
    if (step != 2 || arm_at_once) continue;
    // Killed while a reader is there to see it; if none comes, then without.
    const auto deadline = Clock::now() + setup.endpoint.timeout;
    while (shared.attached < generation && !shared.stop && Clock::now() < deadline) usleep(200);
    arm();
  }
}

}  // namespace moetap::crash
