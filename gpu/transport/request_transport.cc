#include "gpu/transport/request_transport.h"

#include <moetap/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <string_view>
#include <vector>

#include "gpu/internal/wanted_tokens.h"
#include "gpu/transport/drafted_steps.h"
#include "gpu/transport/patience.h"
#include "gpu/transport/request_keeper.h"
#include "gpu/transport/step_pipeline.h"
#include "lib/internal/number_format.h"

namespace moetap {
namespace {

class RequestTransport final : public Transport {
 public:
  RequestTransport(Device& device, const Endpoint& endpoint, const DeviceTransportOptions& options,
                   Keeping keeping)
      : Transport(device, endpoint),
        on_full_(options.on_full),
        drafts_(options.drafts),
        keeper_(endpoint, endpoint.ring_depth, options.drafts, keeping),
        pipeline_(device, endpoint, options.staging_depth, endpoint.ring_depth, failures(),
                  [this](const StepPipeline::Arrival& arrival) {
                    keeper_.arrived(arrival.record, arrival.num_tokens, arrival.fault);
                  }) {
    const std::size_t bytes = StepRecordLayout(endpoint.shape, endpoint.max_tokens).bytes;
    for (int i = 0; i < endpoint.ring_depth; ++i) records_.push_back(device.allocate_pinned(bytes));
    requests_.reserve(static_cast<std::size_t>(endpoint.max_tokens));
  }

  void begin(const StepInfo& step) override {
    throw_broken();
    std::int64_t tokens = 0;
    for (const RequestSpan& span : step.requests) tokens += span.count;
    if (tokens != step.num_tokens) {
      throw ArgumentError(fmt::format(
          "step {}: StepInfo::requests name {} tokens of {}; a worker that keeps rows per request "
          "must know whose each one is",
          step.step, tokens, step.num_tokens));
    }
    open_ = !(step.wanted && step.wanted->empty());  // otherwise it is never published
    assign_wanted_spans(step, requests_);
    if (drafts_ == Drafts::tree) drafted_.add(step);
  }

  void deliver(const Snapshot& step, Stream& stream) override {
    throw_broken();
    const auto free = [this] { return num_published_ - keeper_.num_kept() < records_.size(); };
    if (on_full_ == OnFull::drop && !may_publish(free)) {
      return drop(step.step(), 0);
    }
    wait_for_record(step.step(), free);
    keeper_.expect(num_published_, step.step(), requests_);
    pipeline_.publish(step, records_[num_published_ % records_.size()].data(), stream);
    ++num_published_;
    open_ = false;
  }

  // Rows are stored by position, so slots are not needed.
  void give_up(const Snapshot& step, std::string_view why, Stream&) noexcept override {
    failures().add(step.step(), why);
    try {
      drop(step.step(), without_room_ == step.step() ? 0 : 1);
    } catch (...) {
      lost_ = std::current_exception();
    }
  }

  void finalize(Step step, Milliseconds timeout) override {
    const Step last = std::min(step, pipeline_.published());
    wait([&] { return keeper_.caught_up(last); }, timeout, fmt::format("for step {}", last));
    throw_broken();
  }

  void accept(Step step, RequestId request, std::int64_t num_tokens,
              std::span<const std::int64_t> accepted) override {
    throw_broken();
    const auto known = drafted_.accepted(step, request, num_tokens, accepted);
    if (!known) return;
    const auto [position, tokens] = *known;
    keeper_.accept(request, {step, position, {tokens.begin(), tokens.end()}}, after_open());
    drafted_.forget(step, request);
    keeper_.work();
  }

  void end_request(RequestId request, RequestEnd how) override {
    throw_broken();
    keeper_.end(request, how, after_open());
    if (how != RequestEnd::preempted) drafted_.erase(request);
    keeper_.work();
  }

  DroppedSteps dropped() const override { return dropped_; }

 private:
  // Calls inside an open step are about that step too.
  std::uint64_t after_open() const { return num_published_ + (open_ ? 1 : 0); }

  template <class Free>
  bool may_publish(Free&& free) {
    return pipeline_.wait_until(
        [&] {
          keeper_.work();
          return free();
        },
        Milliseconds(0));
  }

  template <class Free>
  void wait_for_record(Step step, Free&& free) {
    try {
      wait(free, patience_.next(keeper_), "for a free record of host memory");
    } catch (const TimeoutError&) {
      if (!keeper_.stalled().empty()) patience_.ended(keeper_);  // else it waited for the device
      without_room_ = step;
      throw;
    }
  }

  // Closes the open step without its rows.
  void drop(Step step, std::uint64_t given_up) {
    open_ = false;
    keeper_.drop(num_published_, step, requests_, given_up);
    ++dropped_.count;
    dropped_.given_up += given_up;
    dropped_.last = step;
    keeper_.work();
  }

  void throw_broken() const {
    if (lost_) std::rethrow_exception(lost_);
    keeper_.throw_broken();
  }

  template <class Ready>
  void wait(Ready&& ready, Milliseconds timeout, const std::string& what) {
    const auto done = [&] {
      keeper_.work();
      return ready() || keeper_.is_broken();
    };
    const bool met = pipeline_.wait_until(done, timeout);
    keeper_.throw_broken();
    if (met) return;
    const std::string stalled = keeper_.stalled();
    throw TimeoutError(fmt::format(
        "waited {} ms {}: of {} published steps {} are in the worker's cache; {}", timeout.count(),
        what, num_published_, keeper_.num_kept(),
        stalled.empty() ? "the device is late: is its stream waiting for something?" : stalled));
  }

  OnFull on_full_;
  Drafts drafts_;
  DroppedSteps dropped_;
  DraftedSteps drafted_;
  std::vector<Buffer> records_;       // pinned; used round-robin
  std::vector<WantedSpan> requests_;  // requests of the open step's wanted tokens
  std::uint64_t num_published_ = 0;
  bool open_ = false;  // between begin_step() and publish()
  Patience patience_{endpoint().timeout};
  Step without_room_ = 0;    // the last step for which there was none in time
  std::exception_ptr lost_;  // why a step that was given up could not be reported
  RequestKeeper keeper_;
  StepPipeline pipeline_;  // destroyed first: its callbacks use all of the above
};

}  // namespace

std::unique_ptr<Transport> make_request_transport(Device& device, const Endpoint& endpoint,
                                                  const DeviceTransportOptions& options,
                                                  Keeping keeping) {
  return std::make_unique<RequestTransport>(device, endpoint, options, keeping);
}

}  // namespace moetap
