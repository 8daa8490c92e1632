#include "gpu/transport/request_transport.h"

#include <moetap/error.h>
#include <moetap/topk_ids.h>

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <vector>

#include "gpu/internal/wanted_tokens.h"
#include "gpu/transport/request_keeper.h"
#include "gpu/transport/step_pipeline.h"

namespace moetap {
namespace {

class RequestTransport final : public CaptureTransport {
 public:
  RequestTransport(Device& device, const Endpoint& endpoint, const DeviceTransportOptions& options,
                   Keeping keeping)
      : limit_(endpoint.limit),
        on_full_(options.on_full),
        keeper_(endpoint, endpoint.ring_depth, keeping),
        pipeline_(device, endpoint, options.staging_depth, endpoint.ring_depth,
                  [this](const StepPipeline::Arrival& arrival) {
                    keeper_.arrived(arrival.record, arrival.num_tokens, arrival.fault);
                  }) {
    const std::size_t bytes = StepRecordLayout(endpoint.shape, endpoint.max_tokens).bytes;
    for (int i = 0; i < endpoint.ring_depth; ++i) records_.push_back(device.allocate_pinned(bytes));
    requests_.reserve(static_cast<std::size_t>(endpoint.max_tokens));
  }

  const ModelShape& shape() const override { return pipeline_.shape(); }
  std::int64_t max_tokens() const override { return pipeline_.max_tokens(); }

  void compare_all_picks() override { pipeline_.cache().compare_all_picks(); }

  void begin_step(const StepInfo& step, std::int64_t dp_row, Stream& stream) override {
    throw_broken();
    std::int64_t tokens = 0;
    for (const RequestSpan& span : step.requests) tokens += span.count;
    if (tokens != step.num_tokens) {
      throw ArgumentError(fmt::format(
          "step {}: StepInfo::requests name {} tokens of {}; a worker that keeps rows per request "
          "must know whose each one is",
          step.step, tokens, step.num_tokens));
    }
    pipeline_.begin_step(step, dp_row, stream);
    open_ = !(step.wanted && step.wanted->empty());  // else it is never published
    assign_wanted_spans(step, requests_);
  }

  void capture(int layer, const TopkIds& topk_ids, std::int64_t first_row,
               Stream& stream) override {
    pipeline_.capture(layer, topk_ids, first_row, stream);
  }

  void route_sink(int layer, std::int64_t first_row, std::int64_t end_row, int shared_columns,
                  RouteSink& sink) override {
    sink = pipeline_.cache().sink(layer, first_row, end_row, shared_columns);
  }
  RouteOutput route_output(int layer) override { return pipeline_.cache().route_output(layer); }

  void publish(const Slot* slot_mapping, Stream& stream) override {
    throw_broken();
    const auto free = [this] { return num_published_ - keeper_.num_kept() < records_.size(); };
    if (on_full_ == OnFull::drop && !may_publish(free)) {
      pipeline_.skip_step(stream);
      return drop(0);
    }
    wait(free, limit_, "for a free record of host memory");
    keeper_.expect(num_published_, pipeline_.open_step(), requests_);
    pipeline_.publish(slot_mapping, records_[num_published_ % records_.size()].data(), stream);
    ++num_published_;
    open_ = false;
  }

  void skip_step(Stream& stream) override { pipeline_.skip_step(stream); }

  // Rows are kept by position, so that nobody needs the slots.
  void give_up(const Slot*, Stream& stream) noexcept override {
    pipeline_.give_up(stream);
    try {
      drop(1);
    } catch (...) {
      lost_ = std::current_exception();
    }
  }

  std::vector<StepFailed> take_failures() override { return pipeline_.failures().take(); }
  std::uint64_t num_failed() const override { return pipeline_.failures().count(); }

  void finalize(Step step, Milliseconds limit) override {
    const Step last = std::min(step, pipeline_.published());
    wait([&] { return keeper_.caught_up(last); }, limit, fmt::format("for step {}", last));
    throw_broken();
  }

  void end_request(std::uint64_t request, RequestEnd how) override {
    throw_broken();
    // One that ends inside an open step has rows in that step too.
    keeper_.end(request, how, num_published_ + (open_ ? 1 : 0));
    keeper_.work();
  }

  DroppedSteps dropped() const override { return dropped_; }

 private:
  template <class Free>
  bool may_publish(Free&& free) {
    return pipeline_.wait_until(
        [&] {
          keeper_.work();
          return free();
        },
        Milliseconds(0));
  }

  // Closes the open step without its rows.
  void drop(std::uint64_t given_up) {
    open_ = false;
    keeper_.drop(num_published_, pipeline_.open_step(), requests_, given_up);
    ++dropped_.count;
    dropped_.given_up += given_up;
    dropped_.last = pipeline_.open_step();
    keeper_.work();
  }

  void throw_broken() const {
    if (lost_) std::rethrow_exception(lost_);
    keeper_.throw_broken();
  }

  template <class Ready>
  void wait(Ready&& ready, Milliseconds limit, const std::string& what) {
    const auto done = [&] {
      keeper_.work();
      return ready() || keeper_.is_broken();
    };
    const bool met = pipeline_.wait_until(done, limit);
    keeper_.throw_broken();
    if (met) return;
    const std::string stalled = keeper_.stalled();
    throw TimeoutError(fmt::format(
        "waited {} ms {}: of {} published steps {} are in the worker's cache; {}", limit.count(),
        what, num_published_, keeper_.num_kept(),
        stalled.empty() ? "the device is behind: is its stream waiting for something?" : stalled));
  }

  Milliseconds limit_;
  OnFull on_full_;
  DroppedSteps dropped_;
  std::vector<Buffer> records_;        // pinned; used in turn
  std::vector<RequestSpan> requests_;  // whose the open step's wanted tokens are
  std::uint64_t num_published_ = 0;
  bool open_ = false;        // between begin_step() and publish()
  std::exception_ptr lost_;  // why nobody could be told of a step that was given up
  RequestKeeper keeper_;
  StepPipeline pipeline_;  // goes first: its callbacks use all of the above
};

}  // namespace

std::unique_ptr<CaptureTransport> make_request_transport(Device& device, const Endpoint& endpoint,
                                                         const DeviceTransportOptions& options,
                                                         Keeping keeping) {
  return std::make_unique<RequestTransport>(device, endpoint, options, keeping);
}

}  // namespace moetap
