#include "route_tap.h"

#include <moetap/error.h>

#include <ggml-backend.h>
#include <ggml.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

namespace example {
namespace {

constexpr std::string_view kPicks = "ffn_moe_topk-";  // and the layer's number

// Of a graph's node that has what the routers of a layer picked.
std::optional<int> layer_of(const ggml_tensor& node) {
  std::string_view name(node.name);
  if (!name.starts_with(kPicks)) return std::nullopt;
  name.remove_prefix(kPicks.size());
  int layer = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  if (error != std::errc() || end != name.data() + name.size()) return std::nullopt;
  return layer;
}

// Of a tensor that is computed on the CPU.
const std::int32_t* host_data(const ggml_tensor& tensor) {
  const ggml_backend_buffer_t buffer =
      tensor.view_src != nullptr ? tensor.view_src->buffer : tensor.buffer;
  if (tensor.type != GGML_TYPE_I32 || buffer == nullptr || !ggml_backend_buffer_is_host(buffer)) {
    throw moetap::ArgumentError(std::string(tensor.name) + " is of type " +
                                ggml_type_name(tensor.type) +
                                ", or not in the host's memory: this example takes int32 of a CPU");
  }
  return static_cast<const std::int32_t*>(tensor.data);
}

// Whether `tensor` has the batch's values, in the batch's order.
void require_equal(const ggml_tensor& tensor, const std::int32_t* expected, std::int64_t count,
                   const char* what) {
  const auto* values = host_data(tensor);
  if (tensor.ne[0] != count) {
    throw moetap::ArgumentError("llama.cpp computes " + std::to_string(tensor.ne[0]) + " of the " +
                                std::to_string(count) +
                                " tokens of a batch at once: make n_ubatch larger, or the "
                                "context with kv_unified");
  }
  if (!std::equal(values, values + count, expected)) {
    throw moetap::ArgumentError(std::string("llama.cpp computes the ") + what +
                                " of a batch in another order: make the context with kv_unified");
  }
}

}  // namespace

RouteTap::RouteTap(moetap::Device& device, std::unique_ptr<moetap::Transport> transport)
    : device_(&device), stream_(device.make_stream()), capturer_(std::move(transport)) {
  for (const int layer : capturer_.shape().moe_layers()) capturer_.bind(layer);
}

void RouteTap::attach(llama_context_params& params) {
  params.cb_eval = &RouteTap::evaluate;
  params.cb_eval_user_data = this;
}

int RouteTap::decode(llama_context* context, const llama_batch& batch, moetap::Step step,
                     std::span<const moetap::Slot> slots) {
  failure_.clear();
  std::optional<moetap::StepGuard> open;
  try {
    if (slots.size() != static_cast<std::size_t>(batch.n_tokens)) {
      throw moetap::ArgumentError(std::to_string(slots.size()) + " slots for " +
                                  std::to_string(batch.n_tokens) + " tokens: give one for each");
    }
    open.emplace(capturer_, moetap::StepInfo{.step = step, .num_tokens = batch.n_tokens}, *stream_);
    batch_ = &batch;
    tokens_checked_ = positions_checked_ = false;
  } catch (const std::exception& error) {
    note(error);
  }
  const int status = llama_decode(context, batch);
  batch_ = nullptr;
  if (status != 0 || !failure_.empty()) return status;  // the guard gives the step up
  try {
    if (!tokens_checked_ || !positions_checked_) {
      throw moetap::StateError(
          "the graph has no inp_tokens or inp_pos where they are looked for, so that the order of "
          "its tokens is not known");
    }
    const std::size_t bytes = slots.size_bytes();
    if (slots_.size() < bytes) slots_ = device_->allocate(bytes);
    std::copy(slots.begin(), slots.end(), slots_.as<moetap::Slot>());
    open->publish(slots_.as<const moetap::Slot>());
  } catch (const std::exception& error) {
    note(error);
  }
  return status;
}

// An exception must not get into llama.cpp, and `false` would end the computation.
bool RouteTap::evaluate(ggml_tensor* node, bool ask, void* tap) noexcept {
  auto& self = *static_cast<RouteTap*>(tap);
  if (self.batch_ == nullptr || !self.failure_.empty()) return !ask;
  try {
    if (!ask) {
      self.capture(*node);
      return true;
    }
    self.check_order(*node);
    return layer_of(*node).has_value();
  } catch (const std::exception& error) {
    self.note(error);
    return !ask;
  }
}

// The inputs have their values before the first node is computed.
void RouteTap::check_order(const ggml_tensor& node) {
  const ggml_tensor* input = node.src[1];
  if (input == nullptr) return;
  const std::string_view name(input->name);
  if (!tokens_checked_ && name == "inp_tokens") {
    require_equal(*input, batch_->token, batch_->n_tokens, "tokens");
    tokens_checked_ = true;
  } else if (!positions_checked_ && name == "inp_pos") {
    require_equal(*input, batch_->pos, batch_->n_tokens, "positions");
    positions_checked_ = true;
  }
}

void RouteTap::capture(const ggml_tensor& picks) {
  const int layer = *layer_of(picks);
  const auto stride = static_cast<std::int64_t>(picks.nb[1] / sizeof(std::int32_t));
  capturer_.capture(layer,
                    {.data = host_data(picks),
                     .type = moetap::IdType::int32,
                     .rows = picks.ne[1],
                     .columns = picks.ne[0],
                     .row_stride = stride},
                    *stream_);
  if (on_picks_) on_picks_(layer, picks);
}

void RouteTap::note(const std::exception& error) { failure_ = error.what(); }

}  // namespace example
