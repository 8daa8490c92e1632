#include "test/gpu/engine.h"

#include <gtest/gtest.h>

#include <cstring>
#include <utility>

namespace moetap::test {

Engine::Engine(Device& device, const Scenario& scenario, std::unique_ptr<Transport> transport,
               EngineOptions options)
    : device_(device),
      scenario_(scenario),
      options_(options),
      stream_(device.make_stream()),
      model_(device, scenario.router, Scenario::kRanks * Scenario::kMaxTokens, options.type,
             options.shared_expert_columns, options.stride_padding, options.wide_weights),
      capturer_(std::move(transport), {.dp_rank = Scenario::kRank,
                                       .dp_size = Scenario::kRanks,
                                       .layout = scenario.layout,
                                       .shared_expert_columns = options.shared_expert_columns}),
      slot_mapping_(device.allocate(Scenario::kMaxTokens * sizeof(Slot))) {
  const ModelShape& shape = scenario.router.shape;
  for (const int layer : shape.moe_layers()) capturer_.bind(layer);
  graph_ = record_graph(shape.num_layers());
  graph_without_last_layer_ = record_graph(shape.num_layers() - 1);
}

std::unique_ptr<Graph> Engine::record_graph(int layers) {
  const ScenarioStep any{.padded_tokens = Scenario::kGraphTokens, .graph = true};
  const GraphGuard recording(capturer_, Scenario::kGraphTokens);
  stream_->begin_capture();
  capture_layers(scenario_.rows(any), layers);
  return stream_->end_capture();
}

void Engine::capture_layers(std::int64_t rows, int count) {
  const std::vector<int>& layers = scenario_.router.shape.moe_layers();
  for (int i = 0; i < count; ++i) {
    capturer_.capture(layers[static_cast<std::size_t>(i)], model_.topk_ids(i, rows), *stream_);
  }
}

void Engine::capture(const ScenarioStep& step) {
  const bool lacks_layer = step.trouble == Trouble::layer_missing;
  if (step.graph) {
    stream_->launch(lacks_layer ? *graph_without_last_layer_ : *graph_);
  } else {
    capture_layers(scenario_.rows(step),
                   scenario_.router.shape.num_layers() - (lacks_layer ? 1 : 0));
  }
}

void Engine::spoil(const ScenarioStep& step) {
  if (step.trouble != Trouble::bad_id) return;
  const std::int64_t row = scenario_.first_row(step) + step.num_tokens / 2;
  model_.spoil(0, row, 1, scenario_.router.shape.num_experts());
}

void Engine::queue_slots(const ScenarioStep& step) {
  if (step.slots.empty()) return;
  const std::size_t bytes = step.slots.size() * sizeof(Slot);
  const Buffer& source = pinned_.emplace_back(device_.allocate_pinned(bytes));
  std::memcpy(source.data(), step.slots.data(), bytes);
  stream_->copy(slot_mapping_.data(), source.data(), bytes);
}

void Engine::take_failures() {
  for (const StepFailed& failure : capturer_.take_failures()) {
    EXPECT_TRUE(failed_.insert(failure.step()).second) << failure.what() << " (again)";
  }
  EXPECT_GE(capturer_.num_failed(), failed_.size());
}

void Engine::begin(const ScenarioStep& step) {
  spoil(step);
  model_.route(step.step, scenario_.real_rows(step), *stream_);
  queue_slots(step);
  StepInfo info{.step = step.step, .num_tokens = step.num_tokens, .dp_tokens = step.dp_tokens};
  if (scenario_.layout == RankLayout::padded || step.graph) {
    info.padded_tokens = std::max(step.padded_tokens, step.num_tokens);
  }
  info.requests = step.requests;
  if (step.wanted) info.wanted = *step.wanted;
  capturer_.begin_step(info, *stream_);
  capture(step);
}

// The next step's slots come to the same memory, and its picks into the same topk_ids.
void Engine::publish(const ScenarioStep& step) {
  capturer_.publish(slot_mapping_.as<const Slot>(), *stream_);
  take_failures();
  last_ = step.step;
}

void Engine::finish(Milliseconds timeout) {
  capturer_.finalize(last_, timeout);
  take_failures();
}

}  // namespace moetap::test
