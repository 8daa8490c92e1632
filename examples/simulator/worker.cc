#include "examples/simulator/worker.h"

#include <moetap/capturer.h>
#include <moetap/device.h>
#include <moetap/error.h>
#include <moetap/topk_ids.h>
#include <moetap/transport.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include "examples/simulator/batch.h"
#include "examples/simulator/protocol.h"
#include "examples/simulator/router_kernel.h"

namespace demo {
namespace {

void sleep_for(void* duration) {
  std::this_thread::sleep_for(*static_cast<std::chrono::microseconds*>(duration));
}

class Worker {
 public:
  explicit Worker(const WorkerConfig& config);

  std::string device_name() const { return device_->name(); }

  // Runs one step; the memory of the reply is valid until the next step.
  StepReply run(const PlanView& plan);

  void end_requests(std::span<const PlanEnd> ended);

 private:
  void upload();
  void publish(moetap::StepGuard& open);
  void record_graph();
  void run_layers(std::int64_t rows);
  void run_router(int layer, std::int64_t rows);
  void run_draft_model(std::int64_t rows);

  // Decode steps of up to this many tokens replay a graph, as serving engines do; a graph always
  // runs all of its rows, and those past the step's tokens are padding.
  std::int64_t graph_tokens_;
  Router router_;
  Batch batch_;
  std::chrono::microseconds forward_time_;
  bool drafts_;
  std::unique_ptr<moetap::Device> device_;
  std::unique_ptr<moetap::Stream> stream_;
  std::unique_ptr<moetap::Event> forward_done_;
  moetap::Capturer capturer_;
  std::int64_t row_stride_;  // of topk_ids: rows start at multiples of 16 bytes
  moetap::Buffer tokens_, positions_, slots_, topk_ids_, weights_;
  moetap::Buffer host_tokens_, host_positions_, host_slots_;  // pinned, copied at each step
  std::unique_ptr<moetap::Graph> graph_;
};

std::unique_ptr<moetap::Transport> make_transport(moetap::Device& device,
                                                  const WorkerConfig& config) {
  if (config.transport == TransportKind::shm) {
    return moetap::make_shm_transport(device, config.endpoint);
  }
  using moetap::HostCache;
  return moetap::make_device_transport(
      device, config.endpoint,
      {.host_cache = config.rows_by_request ? HostCache::per_request : HostCache::scheduler,
       .drafts = moetap::Drafts::chain});
}

Worker::Worker(const WorkerConfig& config)
    : graph_tokens_(std::min<std::int64_t>(64, config.endpoint.max_tokens)),
      router_(config.endpoint.shape),
      batch_(config.block_size, config.reject_rate),
      forward_time_(static_cast<std::int64_t>(config.step_ms * 1000)),
      drafts_(config.drafts),
      device_(moetap::open_device(config.device)),
      stream_(device_->make_stream()),
      forward_done_(device_->make_event()),
      capturer_(make_transport(*device_, config),
                {.dp_rank = config.endpoint.dp_rank, .dp_size = config.dp_size}),
      row_stride_((config.endpoint.shape.top_k() + 3) / 4 * 4) {
  const auto tokens = static_cast<std::size_t>(config.endpoint.max_tokens);
  tokens_ = device_->allocate(tokens * sizeof(Token));
  positions_ = device_->allocate(tokens * sizeof(std::int32_t));
  slots_ = device_->allocate(tokens * sizeof(Slot));
  topk_ids_ =
      device_->allocate(tokens * static_cast<std::size_t>(row_stride_) * sizeof(std::int32_t));
  weights_ = device_->allocate(tokens * static_cast<std::size_t>(row_stride_) *
                               moetap::weight_bytes(config.endpoint.shape.weight_type()));
  host_tokens_ = device_->allocate_pinned(tokens * sizeof(Token));
  host_positions_ = device_->allocate_pinned(tokens * sizeof(std::int32_t));
  host_slots_ = device_->allocate_pinned(tokens * sizeof(Slot));
  // Padding rows are computed too, so these must be defined.
  stream_->fill(tokens_.data(), 0, tokens_.size());
  stream_->fill(positions_.data(), 0, positions_.size());

  for (const int layer : capturer_.shape().moe_layers()) capturer_.bind(layer);
  record_graph();
}

void Worker::record_graph() {
  const moetap::GraphGuard recording(capturer_, graph_tokens_);
  stream_->begin_capture();
  run_layers(graph_tokens_);
  graph_ = stream_->end_capture();
}

void Worker::run_layers(std::int64_t rows) {
  const int top_k = capturer_.shape().top_k();
  const moetap::TopkWeights weights{weights_.data(), capturer_.shape().weight_type(), row_stride_};
  for (const int layer : capturer_.shape().moe_layers()) {
    run_router(layer, rows);
    capturer_.capture(layer,
                      {topk_ids_.data(), moetap::IdType::int32, rows, top_k, row_stride_, weights},
                      *stream_);
  }
}

void Worker::run_router(int layer, std::int64_t rows) {
  stream_->launch(RouterKernel{router_, tokens_.as<Token>(), positions_.as<std::int32_t>(), rows,
                               topk_ids_.as<std::int32_t>(), row_stride_, layer,
                               capturer_.shape().weight_type(), weights_.data()},
                  (rows + RouterKernel::kTile - 1) / RouterKernel::kTile);
}

// Its MoE layers have the same ids as the target's first ones. They are not bound, so they are not
// captured (H1).
void Worker::run_draft_model(std::int64_t rows) {
  for (const int layer : {0, 1}) run_router(layer, rows);
}

void Worker::end_requests(std::span<const PlanEnd> ended) {
  for (const PlanEnd& end : ended) {
    capturer_.end_request(end.request, static_cast<moetap::RequestEnd>(end.how));
  }
}

StepReply Worker::run(const PlanView& plan) {
  batch_.begin(plan);
  const std::int64_t num_tokens = plan.num_tokens;
  const std::int64_t rows = num_tokens <= graph_tokens_ ? graph_tokens_ : num_tokens;

  const std::int64_t began = monotonic_ns();
  // Gives the step up if something is thrown before it is published.
  moetap::StepGuard open(capturer_,
                         {.step = plan.step,
                          .num_tokens = num_tokens,
                          .padded_tokens = rows,
                          .requests = batch_.requests(),
                          .wanted = plan.wanted},
                         *stream_);
  const std::int64_t begun = monotonic_ns();

  upload();
  if (rows == graph_tokens_) {
    stream_->launch(*graph_);
  } else {
    run_layers(rows);
  }
  if (drafts_) run_draft_model(rows);
  if (forward_time_.count() > 0) stream_->call(sleep_for, &forward_time_);
  batch_.sample(plan);

  // An engine waits here for the sampled tokens; the time of publish() after that is moetap's cost.
  stream_->record(*forward_done_);
  forward_done_->synchronize();
  const std::int64_t forward_end = monotonic_ns();
  publish(open);
  const std::int64_t published = monotonic_ns();
  return {{plan.step, forward_end, begun - began + published - forward_end},
          batch_.counts(),
          batch_.sampled()};
}

// The tokens are sampled, so an engine continues without the rows if its scheduler does not take
// them in. The rows are missing; the simulator's scheduler is told so and counts them.
void Worker::publish(moetap::StepGuard& open) {
  try {
    open.publish(slots_.as<Slot>());
  } catch (const moetap::TimeoutError& late) {
    fmt::print(stderr, "worker: {}\n", late.what());
  }
  for (const moetap::StepFailed& failure : capturer_.take_failures()) {
    fmt::print(stderr, "worker: {}\n", failure.what());
  }
}

// The previous step has been synchronized, so the pinned buffers are free again. The device's
// copy of the slots may still be read by that step's publish(), which comes earlier on the stream.
void Worker::upload() {
  const auto copy = [this](moetap::Buffer& to, moetap::Buffer& pinned, const auto& from) {
    std::memcpy(pinned.data(), from.data(), from.size_bytes());
    stream_->copy(to.data(), pinned.data(), from.size_bytes());
  };
  copy(tokens_, host_tokens_, batch_.tokens());
  copy(positions_, host_positions_, batch_.positions());
  copy(slots_, host_slots_, batch_.slots());
}

void serve(Socket& socket) {
  const auto configuration = socket.receive();
  if (!configuration) return;
  const WorkerConfig config = decode_config(to_text(configuration->payload));
  Worker worker(config);
  socket.send(Message::ready, worker.device_name());

  std::vector<std::byte> reply;
  while (const auto received = socket.receive()) {
    const PlanView plan = decode_plan(received->payload);
    worker.end_requests(plan.ended);
    if (plan.spans.empty()) continue;  // all requests have ended
    encode(worker.run(plan), reply);
    socket.send(Message::reply, reply);
  }
}

}  // namespace

int run_worker(int fd) {
  Socket socket(fd);
  try {
    serve(socket);
    return 0;
  } catch (const std::exception& error) {
    try {
      socket.send(Message::error, std::string(error.what()));
    } catch (const moetap::SystemError&) {
      // The scheduler has ended, so there is no process to report to.
    }
    return 1;
  }
}

}  // namespace demo

MOETAP_DEFINE_KERNEL(demo::RouterKernel);
