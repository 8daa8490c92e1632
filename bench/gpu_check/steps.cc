#include <moetap/capturer.h>
#include <moetap/transport.h>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "bench/gpu_check/busy.h"
#include "bench/gpu_check/checks.h"
#include "bench/gpu_check/timing.h"
#include "bench/workload.h"

namespace moetap::bench {
namespace {

constexpr const char* kModel = "qwen3-30b-a3b";
constexpr std::int64_t kStepTokens = 256;
constexpr int kSteps = 40;

Endpoint endpoint_of(const char* transport) {
  return {.instance = fmt::format("gpu-check-{}-{}", transport, getpid()),
          .shape = ModelShape::known(kModel),
          .num_slots = kSlots,
          .max_tokens = kMaxTokens,
          .timeout = std::chrono::minutes(5)};  // for a scheduler's wait for its worker, which
                                                // starts late
}

Buffer upload(Device& device, Stream& stream, const void* from, std::size_t bytes) {
  const Buffer host = device.allocate_pinned(bytes);
  std::memcpy(host.data(), from, bytes);
  Buffer memory = device.allocate(bytes);
  stream.copy(memory.data(), host.data(), bytes);
  stream.synchronize();
  return memory;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// An engine whose forward pass is one kernel per layer, which takes its share of the time.
class Engine {
 public:
  Engine(Device& device, const Endpoint& endpoint, std::unique_ptr<Transport> transport)
      : shape_(endpoint.shape),
        stream_(device.make_stream()),
        forward_done_(device.make_event()),
        blocks_(device.name() == "host" ? 1 : 128),
        capturer_(std::move(transport)) {
    const auto ids =
        random_ids<std::int32_t>(shape_, static_cast<std::size_t>(kStepTokens) * shape_.row_ids());
    topk_ids_ = upload(device, *stream_, ids.data(), ids.size() * sizeof ids[0]);
    const SlotMappings mappings(endpoint.num_slots);
    slots_ = upload(device, *stream_, mappings.slots().data(), mappings.slots().size_bytes());
    for (const int layer : shape_.moe_layers()) capturer_.bind(layer);
  }

  // The time in us of one step with a forward pass of so many ms, and until its rows are visible,
  // if it captures.
  struct Step {
    double us = 0;
    double visible_us = 0;
  };
  Step step(double ms, const Graph* graph, bool capturing, Scheduler& scheduler) {
    const auto start = Clock::now();
    if (capturing) {
      capturer_.begin_step({.step = ++number_, .num_tokens = kStepTokens}, *stream_);
    }
    if (graph != nullptr) {
      stream_->launch(*graph);
    } else {
      forward(ms, capturing);
    }
    // An engine waits here for the sampled tokens.
    stream_->record(*forward_done_);
    forward_done_->synchronize();
    const auto forward_end = Clock::now();
    if (capturing) capturer_.publish(next_slots(), *stream_);
    Step took{us_since(start), 0};
    if (capturing) {
      const std::chrono::duration<double, std::micro> visible =
          scheduler.wait(number_) - forward_end;
      took.visible_us = visible.count();
    }
    stream_->synchronize();
    return took;
  }

  void forward(double ms, bool capturing) {
    const auto share = static_cast<std::int64_t>(ms * 1e6 / shape_.num_layers());
    std::size_t first = 0;
    for (const int layer : shape_.moe_layers()) {
      stream_->launch(Busy{share}, blocks_);
      if (capturing) {
        capturer_.capture(layer,
                          {topk_ids_.as<std::int32_t>() + first, IdType::int32, kStepTokens,
                           shape_.top_k(), shape_.top_k()},
                          *stream_);
      }
      first += static_cast<std::size_t>(kStepTokens * shape_.top_k());
    }
  }

  std::unique_ptr<Graph> record(double ms, bool capturing) {
    const GraphGuard recording(capturer_, kStepTokens);
    stream_->begin_capture();
    forward(ms, capturing);
    return stream_->end_capture();
  }

 private:
  const Slot* next_slots() {
    return slots_.as<Slot>() + SlotMappings::offset(number_.value(), kStepTokens);
  }

  ModelShape shape_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> forward_done_;
  std::int64_t blocks_;
  Buffer topk_ids_;
  Buffer slots_;
  Capturer capturer_;
  moetap::Step number_ = 0;
};

// Alternates with and without capturing, so that a temporary slowdown of the machine affects both.
void check_mode(Engine& engine, Scheduler& scheduler, const std::string& transport, double ms,
                bool in_graph, Figures& figures) {
  std::unique_ptr<Graph> plain;
  std::unique_ptr<Graph> capturing;
  if (in_graph) {
    plain = engine.record(ms, false);
    capturing = engine.record(ms, true);
  }
  std::vector<double> without;
  std::vector<double> with;
  std::vector<double> visible;
  for (int i = 0; i < kSteps; ++i) {
    without.push_back(engine.step(ms, plain.get(), false, scheduler).us);
    const auto step = engine.step(ms, capturing.get(), true, scheduler);
    with.push_back(step.us);
    visible.push_back(step.visible_us);
  }
  const double before = median(without);
  const double after = median(with);
  const std::string what =
      fmt::format("{}/{} ms/{}", transport, ms, in_graph ? "graph" : "by calls");
  const bool has_goal = transport == "device" && ms == 5;
  figures.push_back({"step without moetap/" + what, before, "us"});
  figures.push_back({"step with moetap/" + what, after, "us"});
  figures.push_back({"slowed by/" + what, 100 * (after - before) / before, "%",
                     has_goal ? std::optional(0.5) : std::nullopt});
  figures.push_back({"visible after/" + what, median(visible), "us"});
}

void check_transport(Device& device, const Endpoint& endpoint, std::optional<Scheduler>& scheduler,
                     const std::string& transport, Figures& figures) {
  Engine engine(device, endpoint,
                transport == "shm" ? make_shm_transport(device, endpoint)
                                   : make_device_transport(device, endpoint));
  for (const double ms : {2.0, 5.0, 10.0}) {
    for (const bool in_graph : {false, true}) {
      check_mode(engine, *scheduler, transport, ms, in_graph, figures);
    }
  }
  scheduler.reset();
}

}  // namespace

Schedulers::Schedulers()
    : shm_endpoint(endpoint_of("shm")), device_endpoint(endpoint_of("device")) {
  shm.emplace("shm", shm_endpoint);
  device.emplace("device", device_endpoint);
}

void check_steps(Device& device, Schedulers& schedulers, Figures& figures) {
  check_transport(device, schedulers.shm_endpoint, schedulers.shm, "shm", figures);
  check_transport(device, schedulers.device_endpoint, schedulers.device, "device", figures);
}

}  // namespace moetap::bench
