// Takes what the routers of a llama.cpp model pick out of its graph, while it is computed.
#pragma once

#include <moetap/capturer.h>
#include <moetap/device.h>
#include <moetap/transport.h>

#include <llama.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace example {

// One per llama_context. A thread that decodes uses it; nobody else.
//
// Rows are right only if llama.cpp computes a batch as it was given. So the context must have
//   - kv_unified, or the batch's tokens are computed in another order
//   - n_ubatch >= the batch's tokens, or they are computed in parts
// and the batch must ask for the logits of all its tokens, or the last layer computes some only. A
// batch for which any of this does not hold is computed all the same; its rows are missing.
class RouteTap {
 public:
  using OnPicks = std::function<void(int layer, const ggml_tensor& picks)>;

  // `transport` is on an inline device: picks are read before llama.cpp goes on. Binds all MoE
  // layers of the endpoint's shape.
  RouteTap(moetap::Device& device, std::unique_ptr<moetap::Transport> transport);

  // Sets the callback of a context that is to be made. The tap must outlive the context.
  void attach(llama_context_params& params);

  // llama_decode() as a step, whose rows belong to `slots`: one for each token of the batch.
  // Returns what llama_decode() returns. Whatever goes wrong with the capture costs the step's rows
  // only; failure() then says why.
  int decode(llama_context* context, const llama_batch& batch, moetap::Step step,
             std::span<const moetap::Slot> slots);
  const std::string& failure() const { return failure_; }

  moetap::Capturer& capturer() { return capturer_; }

  // Called for the picks of each layer, after they were captured.
  void on_picks(OnPicks call) { on_picks_ = std::move(call); }

 private:
  static bool evaluate(ggml_tensor* node, bool ask, void* tap) noexcept;
  void check_order(const ggml_tensor& node);
  void capture(const ggml_tensor& picks);
  void note(const std::exception& error);

  moetap::Device* device_;
  std::unique_ptr<moetap::Stream> stream_;
  moetap::Capturer capturer_;
  moetap::Buffer slots_;
  OnPicks on_picks_;

  // Of the batch that is decoded.
  const llama_batch* batch_ = nullptr;
  bool tokens_checked_ = false;
  bool positions_checked_ = false;
  std::string failure_;
};

}  // namespace example
