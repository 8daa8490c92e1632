// A router: scores, top-k and weights of a MoE layer from its gate's logits, as DeepSeek-V3, Qwen3
// and others compute them; fused with the capture, or as a plain kernel whose topk_ids are captured
// by a kernel of their own.
#pragma once

#include <moetap/device.h>
#include <moetap/route_sink.h>

#include <cstdint>

namespace moetap {

enum class Scoring : std::uint8_t { softmax, sigmoid };

struct RouterOptions {
  static constexpr int kMaxExperts = 512;
  static constexpr int kMaxGroups = 32;

  int num_experts = 0;
  int top_k = 0;
  Scoring scoring = Scoring::softmax;
  // Experts lie in this many groups of equal size; picks come from the best top_groups of them. A
  // group is as good as its two best experts together if there is a bias and it has two, else as
  // its best one (DeepSeek-V3, -V2).
  int num_groups = 1;
  int top_groups = 1;
  bool renormalize = true;  // a token's weights sum up to `scale`
  float scale = 1;          // routed_scaling_factor

  // ArgumentError that names the field, its value and what is allowed.
  void validate() const;
};

// Memory of a device. A pick is an expert with one of the top_k greatest scores + bias, ties by the
// lower id; its weight is the score alone. Where fewer than top_k scores are numbers, -1 and 0.
struct RouterBuffers {
  const float* logits = nullptr;     // [num_tokens][num_experts]
  const float* bias = nullptr;       // [num_experts], or null
  std::int32_t* topk_ids = nullptr;  // [num_tokens][top_k], best first
  float* weights = nullptr;          // [num_tokens][top_k]
  std::int64_t num_tokens = 0;
};

// Queues a router's kernel. With a sink it captures its picks too, with their weights if rows hold
// some. ArgumentError for options that
// are not valid, or a sink of another top_k.
void launch_router(const RouterOptions& options, const RouterBuffers& buffers, Stream& stream);
void launch_router(const RouterOptions& options, const RouterBuffers& buffers,
                   const RouteSink& sink, Stream& stream);

}  // namespace moetap
