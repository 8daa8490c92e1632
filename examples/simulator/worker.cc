#include "worker.h"

#include <moetap/capturer.h>
#include <moetap/device.h>
#include <moetap/error.h>
#include <moetap/transports.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include "protocol.h"
#include "router.h"

namespace demo {
namespace {

// One MoE layer's router for `num_tokens` tokens.
struct RouterKernel {
  static constexpr std::int64_t kTile = 64;  // tokens a block

  Router router;
  const Token* tokens;
  const std::int32_t* positions;
  std::int64_t num_tokens;
  std::int32_t* topk_ids;
  std::int64_t row_stride;
  int layer;

  MOETAP_DEVICE void operator()(moetap::Block block) const {
    const std::int64_t first = block.index * kTile;
    const std::int64_t last = first + kTile < num_tokens ? first + kTile : num_tokens;
    for (std::int64_t i = first + block.lane; i < last; i += block.lanes) {
      router(tokens[i], positions[i], layer, topk_ids + i * row_stride);
    }
  }
};

void sleep_for(void* duration) {
  std::this_thread::sleep_for(*static_cast<std::chrono::microseconds*>(duration));
}

class Worker {
 public:
  explicit Worker(const WorkerConfig& config);

  std::string device_name() const { return device_->name(); }

  // Runs one step; the reply's tokens are valid until the next.
  StepReply run(const PlanView& plan);

 private:
  void upload(const PlanView& plan);
  void record_graph();
  void run_layers(std::int64_t rows);
  void sample(const PlanView& plan);

  // Decode steps of up to this many tokens replay a graph, as serving engines do; a graph always
  // runs all of its rows, and those past the step's tokens are padding.
  std::int64_t graph_tokens_;
  Router router_;
  std::chrono::microseconds forward_time_;
  std::unique_ptr<moetap::Device> device_;
  std::unique_ptr<moetap::Stream> stream_;
  std::unique_ptr<moetap::Event> forward_done_;
  moetap::Capturer capturer_;
  std::int64_t row_stride_;  // of topk_ids: rows start at multiples of 16 bytes
  moetap::Buffer tokens_, positions_, slots_, topk_ids_;
  moetap::Buffer host_tokens_, host_positions_, host_slots_;  // pinned, copied at each step
  std::unique_ptr<moetap::Graph> graph_;
  std::vector<Token> sampled_;
};

std::unique_ptr<moetap::CaptureTransport> make_transport(moetap::Device& device,
                                                         const WorkerConfig& config) {
  return config.transport == TransportKind::shm
             ? moetap::make_shm_transport(device, config.endpoint)
             : moetap::make_device_transport(device, config.endpoint);
}

Worker::Worker(const WorkerConfig& config)
    : graph_tokens_(std::min<std::int64_t>(64, config.endpoint.max_tokens)),
      router_(config.endpoint.shape),
      forward_time_(static_cast<std::int64_t>(config.step_ms * 1000)),
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
  host_tokens_ = device_->allocate_pinned(tokens * sizeof(Token));
  host_positions_ = device_->allocate_pinned(tokens * sizeof(std::int32_t));
  host_slots_ = device_->allocate_pinned(tokens * sizeof(Slot));
  // Rows of padding are computed too, so that these are defined.
  stream_->fill(tokens_.data(), 0, tokens_.size());
  stream_->fill(positions_.data(), 0, positions_.size());

  for (const int layer : capturer_.shape().moe_layers()) capturer_.bind(layer);
  record_graph();
}

void Worker::record_graph() {
  capturer_.begin_graph(graph_tokens_);
  stream_->begin_capture();
  run_layers(graph_tokens_);
  graph_ = stream_->end_capture();
  capturer_.end_graph();
}

void Worker::run_layers(std::int64_t rows) {
  const int top_k = capturer_.shape().top_k();
  for (const int layer : capturer_.shape().moe_layers()) {
    stream_->launch(RouterKernel{router_, tokens_.as<Token>(), positions_.as<std::int32_t>(), rows,
                                 topk_ids_.as<std::int32_t>(), row_stride_, layer},
                    (rows + RouterKernel::kTile - 1) / RouterKernel::kTile);
    capturer_.capture(layer, {topk_ids_.data(), moetap::IdType::int32, rows, top_k, row_stride_},
                      *stream_);
  }
}

StepReply Worker::run(const PlanView& plan) {
  for (const PlanEnd& end : plan.ended) {
    capturer_.end_request(end.request, static_cast<moetap::RequestEnd>(end.how));
  }
  const auto num_tokens = static_cast<std::int64_t>(plan.tokens.size());
  const std::int64_t rows = num_tokens <= graph_tokens_ ? graph_tokens_ : num_tokens;

  const std::int64_t began = monotonic_ns();
  capturer_.begin_step({.step = plan.step, .num_tokens = num_tokens, .padded_tokens = rows},
                       *stream_);
  const std::int64_t begun = monotonic_ns();

  upload(plan);
  if (rows == graph_tokens_) {
    stream_->launch(*graph_);
  } else {
    run_layers(rows);
  }
  if (forward_time_.count() > 0) stream_->call(sleep_for, &forward_time_);
  sample(plan);

  // An engine waits here for the sampled tokens; what publish() takes after that is moetap's.
  stream_->record(*forward_done_);
  forward_done_->synchronize();
  const std::int64_t forward_end = monotonic_ns();
  capturer_.publish(slots_.as<Slot>(), *stream_);
  const std::int64_t published = monotonic_ns();
  return {{plan.step, forward_end, begun - began + published - forward_end}, sampled_};
}

// The previous step has been synchronized, so the pinned buffers are free again. The device's
// copy of the slots may still be read by that step's publish(), which comes earlier on the stream.
void Worker::upload(const PlanView& plan) {
  const std::size_t count = plan.tokens.size();
  std::memcpy(host_tokens_.data(), plan.tokens.data(), plan.tokens.size_bytes());
  std::memcpy(host_slots_.data(), plan.slots.data(), plan.slots.size_bytes());
  auto* position = host_positions_.as<std::int32_t>();
  for (const PlanSpan& span : plan.spans) {
    for (std::int64_t i = 0; i < span.count; ++i) {
      *position++ = static_cast<std::int32_t>(span.position + i);
    }
  }
  stream_->copy(tokens_.data(), host_tokens_.data(), count * sizeof(Token));
  stream_->copy(positions_.data(), host_positions_.data(), count * sizeof(std::int32_t));
  stream_->copy(slots_.data(), host_slots_.data(), count * sizeof(Slot));
}

void Worker::sample(const PlanView& plan) {
  sampled_.clear();
  for (const PlanSpan& span : plan.spans) {
    if (span.sample != 0) {
      sampled_.push_back(sampled_token(span.seed, span.position + span.count));
    }
  }
}

void serve(Socket& socket) {
  const auto configuration = socket.receive();
  if (!configuration) return;
  const WorkerConfig config = decode_config(to_text(configuration->payload));
  Worker worker(config);
  socket.send(Message::ready, worker.device_name());

  std::vector<std::byte> reply;
  while (const auto received = socket.receive()) {
    const StepReply result = worker.run(decode_plan(received->payload));
    encode(result.times, result.sampled, reply);
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
      // The scheduler is gone, and nobody is left to tell.
    }
    return 1;
  }
}

}  // namespace demo

MOETAP_DEFINE_KERNEL(demo::RouterKernel);
