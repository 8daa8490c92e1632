// Attaches a Capturer to a model: the engine describes its MoE layers and makes one call.
#pragma once

#include <moetap/capturer.h>
#include <moetap/export.h>
#include <moetap/route_sink.h>
#include <moetap/step.h>
#include <moetap/topk_ids.h>

#include <functional>
#include <span>
#include <string>
#include <variant>

namespace moetap {

// The ways in which a layer can deliver its picks. For each way the engine gives a function that
// receives what the layer needs.

// The router is a separate operation that outputs topk_ids. The engine passes these to the function
// that it was given: after the router on its stream, and before any mapping to physical replicas.
struct ModularRouter {
  using Capture = std::function<void(const TopkIds&, Stream&)>;
  std::function<void(Capture)> set_capture;
};

// A router kernel that was written with <moetap/route_sink.h>.
struct CapturingRouter {
  std::function<void(const RouteSink&)> set_sink;
};

// A third-party fused MoE kernel. Give a function if the kernel can write its picks to given
// memory; leave it empty if not.
struct FusedKernel {
  std::string name;  // for messages, e.g. "trtllm_fp8_block_scale_moe"
  std::function<void(const RouteOutput&)> set_output;
};

struct MoeLayer {
  int layer = 0;  // the model's layer id
  std::variant<ModularRouter, CapturingRouter, FusedKernel> router;
};

// Binds all layers, and calls the function of each. Do not pass a draft model's layers. The
// Capturer must outlive the model's use of it. Errors are thrown before anything is bound or
// called. ArgumentError if there are no layers, if a layer is given twice or has no function, or if
// one of the shape's layers is not given. ArgumentError also if a fused kernel cannot write its
// routes (the message names the layer and the kernel), or if the Capturer's layout does not allow a
// layer's way (see Capturer). RangeError for a layer that the shape does not have, StateError for
// one that is already bound.
MOETAP_API void bind_layers(Capturer& capturer, std::span<const MoeLayer> layers);

}  // namespace moetap
