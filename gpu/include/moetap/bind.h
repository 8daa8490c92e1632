// Attaches a Capturer to a model: what an engine says about its MoE layers, and one call.
#pragma once

#include <moetap/capturer.h>
#include <moetap/route_sink.h>
#include <moetap/step.h>
#include <moetap/topk_ids.h>

#include <functional>
#include <span>
#include <string>
#include <variant>

namespace moetap {

// How a layer tells its picks. The engine gives the function that takes what it needs for that.

// The router is a step of its own, whose topk_ids exist: the engine calls what it is given with
// them, behind the router on its stream and before any map to physical replicas.
struct ModularRouter {
  using Capture = std::function<void(const TopkIds&, Stream&)>;
  std::function<void(Capture)> set_capture;
};

// A kernel that was written with <moetap/route_sink.h>.
struct CapturingRouter {
  std::function<void(const RouteSink&)> set_sink;
};

// Someone else's fused MoE kernel. It can write the ids it picks to memory that it is given, or
// (without a function) it cannot.
struct FusedKernel {
  std::string name;  // for messages, e.g. "trtllm_fp8_block_scale_moe"
  std::function<void(const RouteOutput&)> set_output;
};

struct MoeLayer {
  int layer = 0;  // the model's layer id
  std::variant<ModularRouter, CapturingRouter, FusedKernel> router;
};

// Binds each layer and gives it its way to the Capturer, which must outlive the model's use of it.
// A draft model's layers are not given. ArgumentError, before anything is bound or given, if
// there are none, one comes twice or has no function to take what it needs, one of the shape's is
// not there, a fused kernel cannot write its routes (the message names the layer and the kernel),
// or the Capturer's layout does not allow the way that a layer has (see Capturer). RangeError for a
// layer that the shape has not, StateError if one is bound already.
void bind_layers(Capturer& capturer, std::span<const MoeLayer> layers);

}  // namespace moetap
