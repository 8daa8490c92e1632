// The worker's main class: engines call it around and inside the forward pass.
#pragma once

#include <moetap/error.h>
#include <moetap/export.h>
#include <moetap/shape.h>
#include <moetap/step.h>
#include <moetap/topk_ids.h>
#include <moetap/transport.h>
#include <moetap/types.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace moetap {

struct RouteSink;    // for a router that captures its own picks: <moetap/route_sink.h>
class Stream;        // a device's queue of ordered work: <moetap/device.h>
class DeviceCache;   // the routes of the open step
class WantedTokens;  // of the open step

struct CapturerOptions {
  int dp_rank = 0;
  int dp_size = 1;
  RankLayout layout = RankLayout::local;
  // Columns of topk_ids after the top_k routed ones (fused shared experts); they are not routes.
  int shared_expert_columns = 0;
  // On a host device, compare all of a token's picks at a layer with each other, as a GPU does. By
  // default only the first two are compared, which are equal in unwritten memory.
  bool compare_all_picks = false;
};

// Records which experts the router picked. One per model and process. One thread at a time.
//
//   once:      bind(layer) for each MoE layer of the target model (a draft model's are not bound)
//   a step:    begin_step(info, stream)
//              capture(layer, topk_ids, stream) from each bound layer  — or the replay of a graph
//              publish(slot_mapping, stream)                             that holds those calls
//   a graph:   begin_graph(tokens) … capture(…) for each layer … end_graph(), or a GraphGuard
//   each round of the engine: take_failures()
//
// A StepGuard closes the step whatever happens in it. A failed step is not an exception, as its
// tokens are valid: only its rows are missing, and the reader is told why.
//
// All work is ordered by the streams that are passed in. Use one stream for a whole step.
class MOETAP_API Capturer {
 public:
  // OwnedError if this process already captures the endpoint's model.
  explicit Capturer(std::unique_ptr<Transport> transport, CapturerOptions options = {});
  ~Capturer();
  Capturer(const Capturer&) = delete;
  Capturer& operator=(const Capturer&) = delete;

  // The process-wide Capturer. These three functions may be called from any thread. StateError for
  // a second create(), and for instance() before create(). destroy() does nothing if there is none.
  // It is not destroyed at exit: call destroy() while the transport's device still exists.
  static Capturer& create(std::unique_ptr<Transport> transport, CapturerOptions options = {});
  static Capturer& instance();
  static void destroy();

  const ModelShape& shape() const { return transport_->endpoint().shape; }

  // Declares that a layer of the model will be captured. RangeError if the shape has no such MoE
  // layer, StateError if it is already bound.
  void bind(int model_layer);

  // Opens a step. RangeError if it has more tokens (with padding) than the device cache. StateError
  // if layers are unbound, a step is open, or the step number is not greater than the last one.
  // ArgumentError for token counts, requests or wanted tokens that contradict each other. After an
  // exception no step is open, and the same number may be used again.
  void begin_step(const StepInfo& step, Stream& stream);

  // Declares that the capture() calls up to end_graph() are recorded into a graph with this many
  // (padded) tokens per rank. The graph serves every step of up to that many tokens. topk_ids must
  // have the padded number of rows. In the concatenated layout any fixed number from padded_tokens
  // to dp_size times that is allowed; a step that needs more rows fails on the device. RangeError
  // and StateError as begin_step().
  void begin_graph(std::int64_t padded_tokens);
  void end_graph();

  // Captures the first top_k columns of this rank's rows, and of their weights if the shape has
  // some. ArgumentError if the layout does not allow the number of rows or columns (the message has
  // both numbers), or if the weights are not the shape's. StateError outside a step or graph,
  // RangeError for a layer without a router. The device checks which layers a step captured, also
  // when a graph is replayed: a missing or repeated layer fails the step.
  void capture(int model_layer, const TopkIds& topk_ids, Stream& stream);

  // Two ways to capture a bound layer's picks without capture() calls. Each is set up once for all
  // steps; bind_layers() in <moetap/bind.h> does so. StateError if the layer is not bound.
  //
  // For an engine's router kernel that captures its own picks: fills in `sink`. In the padded
  // layout the rows depend on the padding. A sink is then only available inside a step or graph,
  // and valid only for it (StateError outside).
  void route_sink(int model_layer, RouteSink& sink) const;
  // For a fused kernel that writes its picks to given memory. ArgumentError unless its rows are
  // this rank's only (RankLayout::local), ids fit int16, and the shape has no weights: stale
  // weights could not be detected. A token whose row the kernel does not write has a missing route.
  // If it writes no row, the layer was not captured. Nothing else may capture the layer then.
  RouteOutput route_output(int model_layer) const;

  bool bound(int model_layer) const;
  const CapturerOptions& options() const { return options_; }

  // Closes the step; see Transport::deliver. `slot_mapping` is device memory with a slot for each
  // of the step's tokens. An exception (a timeout) leaves the step open, as its rows are not yet
  // accounted for: publish it again, or give it up. A step of which no rows are wanted is only
  // closed; slot_mapping may then be null.
  void publish(const Slot* slot_mapping, Stream& stream);

  // Closes the step without its rows, see Transport::give_up. Does nothing if no step is open.
  void give_up(const Slot* slot_mapping, Stream& stream) noexcept;

  // The steps that failed or were given up; see Transport::take_failures.
  [[nodiscard]] std::vector<StepFailed> take_failures() { return transport_->take_failures(); }
  std::uint64_t num_failed() const { return transport_->num_failed(); }

  void finalize(Step step, Milliseconds timeout) { transport_->finalize(step, timeout); }
  // See Transport::dropped and Transport::end_request.
  DroppedSteps dropped() const { return transport_->dropped(); }
  void accept(Step step, RequestId request, std::int64_t num_tokens,
              std::span<const std::int64_t> accepted) {
    transport_->accept(step, request, num_tokens, accepted);
  }
  void end_request(RequestId request, RequestEnd how) { transport_->end_request(request, how); }

 private:
  friend class GraphGuard;
  enum class Phase { idle, step, graph };

  int require_bound(int model_layer, const char* call) const;  // its index
  void require_ready(const char* call) const;
  void check_topk_ids(int model_layer, const TopkIds& topk_ids) const;
  void check_rows(int model_layer, std::int64_t rows) const;
  void deliver(const Slot* slot_mapping, Stream& stream);

  std::unique_ptr<DeviceCache> cache_;  // destroyed last: the transport's queued work may read it
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<WantedTokens> wanted_;
  CapturerOptions options_;
  std::vector<bool> bound_;  // by layer index
  int num_bound_ = 0;
  Phase phase_ = Phase::idle;
  Step last_step_ = 0;
  bool nothing_wanted_ = false;     // of the open step
  std::string not_published_;       // why its publish() failed; empty if it did not
  std::int64_t padded_tokens_ = 0;  // of the open step or graph
  std::int64_t dp_total_ = 0;       // sum(dp_tokens) of the open step
};

// An open step. If it was not published when the guard ends, e.g. because the forward pass threw,
// it is given up. The reader is then told that it failed, and the next step can begin.
//
//   StepGuard open(capturer, info, stream);
//   …                                          // forward pass: capture()s, graphs; may throw
//   open.publish(slot_mapping);
class [[nodiscard]] StepGuard {
 public:
  // Calls Capturer::begin_step. Capturer and stream must outlive the guard.
  StepGuard(Capturer& capturer, const StepInfo& step, Stream& stream)
      : capturer_(capturer), stream_(stream) {
    capturer_.begin_step(step, stream_);
  }
  // Calls Capturer::give_up, unless the step was published. May wait for the scheduler as publish()
  // does.
  ~StepGuard() {
    if (open_) capturer_.give_up(slot_mapping_, stream_);
  }
  StepGuard(const StepGuard&) = delete;
  StepGuard& operator=(const StepGuard&) = delete;

  // Calls Capturer::publish. After an exception it may be called again. If the step is given up
  // instead, `slot_mapping` must still have the slots then: older rows in them are cleared.
  void publish(const Slot* slot_mapping) {
    slot_mapping_ = slot_mapping;
    capturer_.publish(slot_mapping, stream_);
    open_ = false;
  }

 private:
  Capturer& capturer_;
  Stream& stream_;
  const Slot* slot_mapping_ = nullptr;
  bool open_ = true;
};

// A graph is recorded during the guard's lifetime. If recording throws, the next step or graph can
// still begin. The engine itself must end the stream's recording.
//
//   GraphGuard recording(capturer, padded_tokens);
//   …                                          // the model, recorded: capture()s; may throw
class [[nodiscard]] GraphGuard {
 public:
  // Calls Capturer::begin_graph. The capturer must outlive the guard.
  GraphGuard(Capturer& capturer, std::int64_t padded_tokens) : capturer_(capturer) {
    capturer_.begin_graph(padded_tokens);
  }
  ~GraphGuard() {
    if (capturer_.phase_ == Capturer::Phase::graph) capturer_.phase_ = Capturer::Phase::idle;
  }
  GraphGuard(const GraphGuard&) = delete;
  GraphGuard& operator=(const GraphGuard&) = delete;

 private:
  Capturer& capturer_;
};

}  // namespace moetap
