#include <moetap/topk_ids.h>
#include <moetap/topk_router.h>
#include <moetap/transport.h>

#include <fmt/format.h>

#include <functional>
#include <random>
#include <vector>

#include "bench/gpu_check/checks.h"
#include "bench/gpu_check/timing.h"
#include "gpu/internal/device_cache.h"

namespace moetap::bench {
namespace {

struct Model {
  const char* name;
  int num_layers;
  RouterOptions options;
  bool bias;
};

const Model kRouters[] = {
    {"qwen3-30b-a3b", 48, {.num_experts = 128, .top_k = 8}, false},
    {"deepseek-v3",
     58,
     {.num_experts = 256,
      .top_k = 8,
      .scoring = Scoring::sigmoid,
      .num_groups = 8,
      .top_groups = 4,
      .scale = 2.5F},
     true},
};

Buffer random_floats(Device& device, Stream& stream, std::size_t count) {
  const Buffer host = device.allocate_pinned(count * sizeof(float));
  std::mt19937 random(1);
  std::normal_distribution<float> any;
  for (std::size_t i = 0; i < count; ++i) host.as<float>()[i] = any(random);
  Buffer memory = device.allocate(host.size());
  stream.copy(memory.data(), host.data(), host.size());
  stream.synchronize();
  return memory;
}

// A model's routers, all layers on the same logits.
class Layers {
 public:
  Layers(Device& device, const Model& model, std::int64_t tokens, WeightType weights)
      : model_(model),
        stream_(device.make_stream()),
        cache_(device,
               ModelShape::uniform(model.num_layers, model.options.top_k, model.options.num_experts)
                   .with_weights(weights),
               tokens, "gpu_check"),
        logits_(random_floats(device, *stream_,
                              static_cast<std::size_t>(tokens * model.options.num_experts))),
        bias_(random_floats(device, *stream_, static_cast<std::size_t>(model.options.num_experts))),
        ids_(device.allocate(static_cast<std::size_t>(tokens * model.options.top_k) *
                             sizeof(std::int32_t))),
        weights_(device.allocate(ids_.size())),
        buffers_{logits_.as<float>(), model.bias ? bias_.as<float>() : nullptr,
                 ids_.as<std::int32_t>(), weights_.as<float>(), tokens} {
    for (int layer = 0; layer < model_.num_layers; ++layer) (void)sink(layer);  // before any step
    launch_router(model_.options, buffers_, *stream_);  // so that there are ids to capture
    stream_->synchronize();
  }

  void route() { launch_router(model_.options, buffers_, *stream_); }
  void route_and_capture(int layer) {
    launch_router(model_.options, buffers_, sink(layer), *stream_);
  }
  void capture(int layer) {
    const int top_k = model_.options.top_k;
    TopkIds ids{ids_.data(), IdType::int32, buffers_.num_tokens, top_k, top_k};
    if (cache_.shape().weight_type() != WeightType::none) {
      ids.weights = {weights_.data(), WeightType::float32, top_k};
    }
    cache_.capture(layer, ids, 0, *stream_);
  }

  // The time in us of a step whose layers do this, as a graph.
  double step_us(const std::function<void(int)>& layer) {
    stream_->begin_capture();
    for (int i = 0; i < model_.num_layers; ++i) layer(i);
    const auto graph = stream_->end_capture();
    const int count = buffers_.num_tokens > 1024 ? 5 : 20;
    return us_each(*stream_, count, [&] {
      cache_.begin_step(++step_, buffers_.num_tokens, 0, *stream_);
      stream_->launch(*graph);
    });
  }

 private:
  RouteSink sink(int layer) { return cache_.sink(layer, 0, DeviceCache::kAllRows); }

  Model model_;
  std::unique_ptr<Stream> stream_;
  DeviceCache cache_;
  Buffer logits_, bias_, ids_, weights_;
  RouterBuffers buffers_;
  Step step_ = 0;
};

// The time in us that a layer's capture adds to its router.
struct Added {
  double fused, separate;
};
Added added_us(Layers& layers, const Model& model, double router_alone) {
  const double fused = layers.step_us([&](int i) { layers.route_and_capture(i); });
  const double separate = layers.step_us([&](int i) {
    layers.route();
    layers.capture(i);
  });
  return {(fused - router_alone) / model.num_layers, (separate - router_alone) / model.num_layers};
}

// The goals are for steps of decoding, without weights.
void check_model(Device& device, Figures& figures, const Model& model, std::int64_t tokens) {
  Layers layers(device, model, tokens, WeightType::none);
  const auto each = [&](double us) { return us / model.num_layers; };
  const double empty = layers.step_us([](int) {});
  const double alone = layers.step_us([&](int i) { layers.capture(i); });
  const double none = layers.step_us([&](int) { layers.route(); });
  const Added added = added_us(layers, model, none);
  const auto add = [&](const char* what, double value, std::optional<double> goal) {
    figures.push_back({fmt::format("{}/{}/{}", what, model.name, tokens), value, "us/layer",
                       tokens > 256 ? std::nullopt : goal});
  };
  add("capture/alone", each(alone - empty), std::nullopt);
  add("router/alone", each(none - empty), std::nullopt);
  add("capture/fused adds", added.fused, 0.2);
  add("capture/separate adds", added.separate, 2.5);
}

void check_weights(Device& device, Figures& figures, const Model& model, std::int64_t tokens) {
  for (const WeightType type : {WeightType::float32, WeightType::bfloat16}) {
    Layers layers(device, model, tokens, type);
    const Added added = added_us(layers, model, layers.step_us([&](int) { layers.route(); }));
    const auto add = [&](const char* what, double value) {
      figures.push_back({fmt::format("capture/{} {} adds/{}/{}", weight_type_name(type), what,
                                     model.name, tokens),
                         value, "us/layer", std::nullopt});
    };
    add("fused", added.fused);
    add("separate", added.separate);
  }
}

}  // namespace

void check_capture(Device& device, Figures& figures) {
  // The router on a host only shows that this works.
  const std::vector<std::int64_t> token_counts = device.name() == "host"
                                                     ? std::vector<std::int64_t>{2}
                                                     : std::vector<std::int64_t>{64, 256, 2048};
  for (const Model& model : kRouters) {
    for (const std::int64_t tokens : token_counts) {
      check_model(device, figures, model, tokens);
      check_weights(device, figures, model, tokens);
    }
  }
}

}  // namespace moetap::bench
