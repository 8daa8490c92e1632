// The worker's object: engines call it around and inside the forward pass.
#pragma once

#include <moetap/error.h>
#include <moetap/shape.h>
#include <moetap/step.h>
#include <moetap/topk_ids.h>
#include <moetap/transport.h>
#include <moetap/types.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace moetap {

struct RouteSink;    // of a router that captures its own picks: <moetap/route_sink.h>
class Stream;        // a device's queue of ordered work: <moetap/device.h>
class DeviceCache;   // the routes of the open step
class WantedTokens;  // of the open step

struct CapturerOptions {
  int dp_rank = 0;
  int dp_size = 1;
  RankLayout layout = RankLayout::local;
  // Columns of topk_ids behind the top_k routed ones (fused shared experts); they are not routes.
  int shared_expert_columns = 0;
  // On a host device compares all picks of a row with each other, as a GPU does; else only the
  // first two, which memory that nobody wrote has alike.
  bool compare_all_picks = false;
};

// Records which experts the router picked. One per model and process; one thread at a time.
//
//   once:      bind(layer) for each MoE layer of the target model (a draft model's are not bound)
//   a step:    begin_step(info, stream)
//              capture(layer, topk_ids, stream) from each bound layer  — or the replay of a graph
//              publish(slot_mapping, stream)                             that holds those calls
//   a graph:   begin_graph(tokens) … capture(…) for each layer … end_graph(), or a GraphGuard
//   each round of the engine: take_failures()
//
// A StepGuard makes sure that a step is closed whatever happens in it. A step that failed is no
// exception, since its tokens are as good as any: its rows are missing, and the reader hears why.
//
// Everything is ordered by the streams that are passed in; use one stream for a whole step.
class Capturer {
 public:
  // OwnedError if this process captures the endpoint's model already.
  explicit Capturer(std::unique_ptr<Transport> transport, CapturerOptions options = {});
  ~Capturer();
  Capturer(const Capturer&) = delete;
  Capturer& operator=(const Capturer&) = delete;

  // The process-wide one; these three may be called from any thread. create() twice is a
  // StateError, so is instance() before create(); destroy() of none does nothing. Call
  // destroy() while the transport's device still lives: nothing is destroyed at exit.
  static Capturer& create(std::unique_ptr<Transport> transport, CapturerOptions options = {});
  static Capturer& instance();
  static void destroy();

  const ModelShape& shape() const { return transport_->endpoint().shape; }

  // Makes a model layer a source of routes. RangeError if the shape has no such MoE layer,
  // StateError if it is bound already.
  void bind(int model_layer);

  // Opens a step. RangeError if it has more tokens (with padding) than the device cache, StateError
  // if layers are unbound, a step is open, or its number is not above the last one; ArgumentError
  // for token counts, requests or wanted tokens that contradict each other. After an exception no
  // step is open, and the same number may be tried again.
  void begin_step(const StepInfo& step, Stream& stream);

  // Declares that capture() calls up to end_graph() are recorded into a graph of this many (padded)
  // tokens a rank. The graph serves every step of up to that many tokens. topk_ids must have the
  // padded rows (concatenated layout: any fixed number from padded_tokens to dp_size times that; a
  // step that needs more is found on the device). RangeError, StateError as begin_step().
  void begin_graph(std::int64_t padded_tokens);
  void end_graph();

  // Takes the first top_k columns of this rank's rows, and of their weights if the shape has some.
  // ArgumentError if the number of rows or columns is none that the layout allows (both are named),
  // or the weights are not the shape's; StateError outside a step or graph,
  // RangeError for a layer without a router. Which layers a step captured is checked on the device,
  // where the replay of a graph shows too: a missing or repeated one fails the step.
  void capture(int model_layer, const TopkIds& topk_ids, Stream& stream);

  // Two ways for a bound layer's picks to come without a capture() of it, once for all steps;
  // bind_layers() in <moetap/bind.h> uses them. StateError if the layer is not bound.
  //
  // For a router kernel of the engine's that captures its own picks: fills in what it needs. In the
  // padded layout rows depend on the padding, so there it is to be had inside a step or graph only
  // and for that (StateError outside).
  void route_sink(int model_layer, RouteSink& sink) const;
  // For a fused kernel that writes its picks to memory it is given. Only if topk_ids would be this
  // rank's rows (RankLayout::local), ids fit int16 and the shape has no weights, which nobody could
  // tell from older ones: else an ArgumentError. Tokens whose rows it does not write have a missing
  // route; if it writes none, the layer was not captured. Nothing else may capture the layer then.
  RouteOutput route_output(int model_layer) const;

  bool bound(int model_layer) const;
  const CapturerOptions& options() const { return options_; }

  // Closes the step; see Transport::deliver. An exception (a time limit) leaves it open,
  // since its rows would stay unaccounted for: publish it again, or give it up. A step of which
  // nothing is wanted is only closed; slot_mapping may be null.
  void publish(const Slot* slot_mapping, Stream& stream);

  // Closes the step without its rows, see Transport::give_up; does nothing if none is open.
  void give_up(const Slot* slot_mapping, Stream& stream) noexcept;

  // Steps that failed or were given up; see Transport::take_failures.
  std::vector<StepFailed> take_failures() { return transport_->take_failures(); }
  std::uint64_t num_failed() const { return transport_->num_failed(); }

  void finalize(Step step, Milliseconds limit) { transport_->finalize(step, limit); }
  // See Transport.
  DroppedSteps dropped() const { return transport_->dropped(); }
  void end_request(std::uint64_t request, RequestEnd how) { transport_->end_request(request, how); }

 private:
  friend class GraphGuard;
  enum class Phase { idle, step, graph };

  int require_bound(int model_layer, const char* call) const;  // its index
  void require_ready(const char* call) const;
  void check_topk_ids(int model_layer, const TopkIds& topk_ids) const;
  void check_rows(int model_layer, std::int64_t rows) const;
  void deliver(const Slot* slot_mapping, Stream& stream);

  std::unique_ptr<DeviceCache> cache_;  // goes last: what the transport has queued may read it
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<WantedTokens> wanted_;
  CapturerOptions options_;
  std::vector<bool> bound_;  // by layer index
  int num_bound_ = 0;
  Phase phase_ = Phase::idle;
  Step last_step_ = 0;
  std::int64_t num_tokens_ = 0;     // of the open step; 0 in a graph
  bool nothing_wanted_ = false;     // of the open step
  std::int64_t padded_tokens_ = 0;  // of the open step or graph
  std::int64_t dp_total_ = 0;       // sum(dp_tokens) of the open step
};

// An open step. One that was not published when the guard ends is given up, as when the forward
// pass threw: the reader hears that it failed, and the next step works.
//
//   StepGuard open(capturer, info, stream);
//   …                                          // forward pass: capture()s, graphs; may throw
//   open.publish(slot_mapping);
class [[nodiscard]] StepGuard {
 public:
  // Capturer::begin_step. Capturer and stream must outlive the guard.
  StepGuard(Capturer& capturer, const StepInfo& step, Stream& stream)
      : capturer_(capturer), stream_(stream) {
    capturer_.begin_step(step, stream_);
  }
  // Capturer::give_up, unless it was published. May wait for the scheduler as publish() does.
  ~StepGuard() {
    if (open_) capturer_.give_up(slot_mapping_, stream_);
  }
  StepGuard(const StepGuard&) = delete;
  StepGuard& operator=(const StepGuard&) = delete;

  // Capturer::publish. After an exception it may be called again; if it is not, and the step is
  // given up, the slots must still be in `slot_mapping` then: older rows in them are cleared.
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

// A graph that is recorded while the guard lives, also if recording throws: the next step or graph
// can begin then. The stream's own recording is the engine's to end.
//
//   GraphGuard recording(capturer, padded_tokens);
//   …                                          // the model, recorded: capture()s; may throw
class [[nodiscard]] GraphGuard {
 public:
  // Capturer::begin_graph. The capturer must outlive the guard.
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
