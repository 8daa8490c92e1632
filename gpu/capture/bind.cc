#include <moetap/bind.h>
#include <moetap/error.h>
#include <moetap/topk_ids.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace moetap {
namespace {

template <class... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
// For compilers that do not deduce it themselves (clang 14).
template <class... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;

void require_output(const Capturer& capturer, int layer, const std::string& kernel) {
  if (capturer.shape().weight_type() != WeightType::none) {
    throw ArgumentError(
        fmt::format("layer {}: the fused kernel '{}' writes ids only, but rows are of {}; run this "
                    "layer with a "
                    "router that gives its weights, or capture ids without them",
                    layer, kernel, capturer.shape().to_string()));
  }
  if (capturer.options().layout == RankLayout::local &&
      holds_ids(IdType::int16, capturer.shape().num_experts())) {
    return;
  }
  throw ArgumentError(fmt::format(
      "layer {}: the fused kernel '{}' writes its routes as int16 and this rank's only; that needs "
      "the local layout and at most 32768 experts",
      layer, kernel));
}

// Checks that attach() cannot fail.
void require_way_out(const Capturer& capturer, const MoeLayer& layer) {
  if (capturer.bound(layer.layer)) {
    throw StateError(fmt::format("layer {} is bound already; bind a model once", layer.layer));
  }
  const auto require = [&](bool given, const char* kind, const char* function) {
    if (given) return;
    throw ArgumentError(fmt::format("layer {}: a {} without {}; give the function that takes it",
                                    layer.layer, kind, function));
  };
  std::visit(
      Overloaded{
          [&](const ModularRouter& r) {
            require(r.set_capture != nullptr, "ModularRouter", "set_capture");
          },
          [&](const CapturingRouter& r) {
            require(r.set_sink != nullptr, "CapturingRouter", "set_sink");
            if (const int experts = capturer.shape().num_experts(); experts > 65'535) {
              throw ArgumentError(fmt::format(
                  "layer {}: a CapturingRouter of {} experts, where a pick that it does not put "
                  "cannot be told from an id; up to 65535 it can, use a ModularRouter",
                  layer.layer, experts));
            }
            if (capturer.options().layout != RankLayout::padded) return;
            throw ArgumentError(fmt::format(
                "layer {}: a CapturingRouter in the padded layout, where a sink is for one padding "
                "only; use a ModularRouter, or take a sink in each graph: Capturer::route_sink",
                layer.layer));
          },
          [&](const FusedKernel& r) {
            if (r.set_output != nullptr) return require_output(capturer, layer.layer, r.name);
            throw ArgumentError(fmt::format(
                "layer {}: the fused kernel '{}' cannot write its routes; run this layer with a "
                "modular router, or with a kernel that has a routing output",
                layer.layer, r.name));
          },
      },
      layer.router);
}

// Each layer of the shape exactly once, and no other.
void require_all(const ModelShape& shape, std::span<const MoeLayer> layers) {
  if (layers.empty()) {
    throw ArgumentError(fmt::format("no MoE layer to bind; the model has {} ({})",
                                    shape.num_layers(), shape.to_string()));
  }
  std::vector<bool> given(static_cast<std::size_t>(shape.num_layers()));
  for (const MoeLayer& layer : layers) {
    const auto index = static_cast<std::size_t>(shape.layer_index(layer.layer));
    if (given[index]) {
      throw ArgumentError(fmt::format(
          "layer {} is given twice; give the target model's layers only, not a draft model's",
          layer.layer));
    }
    given[index] = true;
  }
  const auto missing = std::find(given.begin(), given.end(), false);
  if (missing == given.end()) return;
  throw ArgumentError(fmt::format(
      "layer {} of the model's MoE layers is not among the {} that were given; give all of them",
      shape.moe_layers()[static_cast<std::size_t>(missing - given.begin())], layers.size()));
}

void attach(Capturer& capturer, const MoeLayer& layer) {
  std::visit(Overloaded{
                 [&](const ModularRouter& r) {
                   r.set_capture([&capturer, id = layer.layer](const TopkIds& ids, Stream& stream) {
                     capturer.capture(id, ids, stream);
                   });
                 },
                 [&](const CapturingRouter& r) {
                   RouteSink sink{};
                   capturer.route_sink(layer.layer, sink);
                   r.set_sink(sink);
                 },
                 [&](const FusedKernel& r) { r.set_output(capturer.route_output(layer.layer)); },
             },
             layer.router);
}

}  // namespace

void bind_layers(Capturer& capturer, std::span<const MoeLayer> layers) {
  require_all(capturer.shape(), layers);
  for (const MoeLayer& layer : layers) require_way_out(capturer, layer);
  for (const MoeLayer& layer : layers) capturer.bind(layer.layer);
  for (const MoeLayer& layer : layers) attach(capturer, layer);
}

}  // namespace moetap
