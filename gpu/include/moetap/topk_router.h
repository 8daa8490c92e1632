// A router: computes a MoE layer's scores, top-k and weights from the gate's logits, as
// DeepSeek-V3, Qwen3 and others do. It is either fused with the capture, or a plain kernel whose
// topk_ids a separate kernel captures.
#pragma once

#include <moetap/device.h>
#include <moetap/export.h>
#include <moetap/route_sink.h>

#include <cstdint>

namespace moetap {

enum class Scoring : std::uint8_t { softmax, sigmoid };

struct MOETAP_API RouterOptions {
  static constexpr int kMaxExperts = 512;
  static constexpr int kMaxGroups = 32;

  int num_experts = 0;
  int top_k = 0;
  Scoring scoring = Scoring::softmax;
  // Experts are in num_groups groups of equal size; picks come from the best top_groups groups.
  // With a bias and at least two experts per group, a group's score is the sum of its two best
  // (DeepSeek-V3). Otherwise it is the best one (DeepSeek-V2).
  int num_groups = 1;
  int top_groups = 1;
  bool renormalize = true;  // a token's weights sum to `scale`
  float scale = 1;          // routed_scaling_factor

  // ArgumentError that names the field, its value and what is allowed.
  void validate() const;
};

// Device memory. The picks are the experts with the top_k greatest scores + bias; the lower id wins
// a tie. A pick's weight is its score without the bias. If fewer than top_k scores are numbers, the
// remaining picks have id -1 and weight 0.
struct RouterBuffers {
  const float* logits = nullptr;     // [num_tokens][num_experts]
  const float* bias = nullptr;       // [num_experts], or null
  std::int32_t* topk_ids = nullptr;  // [num_tokens][top_k], best first
  float* weights = nullptr;          // [num_tokens][top_k]
  std::int64_t num_tokens = 0;
};

// Queues the router's kernel. With a sink it captures the picks too, and their weights if rows have
// weights. ArgumentError for options that are not valid, or a sink with another top_k.
MOETAP_API void launch_router(const RouterOptions& options, const RouterBuffers& buffers,
                              Stream& stream);
MOETAP_API void launch_router(const RouterOptions& options, const RouterBuffers& buffers,
                              const RouteSink& sink, Stream& stream);

}  // namespace moetap
