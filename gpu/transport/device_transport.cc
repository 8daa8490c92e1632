// The `device` transport's worker end where the scheduler keeps the rows: copies go straight into
// the ring that the scheduler drains.
#include <moetap/channel.h>
#include <moetap/error.h>
#include <moetap/topk_ids.h>
#include <moetap/transports.h>

#include <fmt/format.h>

#include <algorithm>

#include "gpu/transport/request_transport.h"
#include "gpu/transport/step_descriptor.h"
#include "gpu/transport/step_pipeline.h"
#include "lib/internal/injection.h"

namespace moetap {
namespace {

class DeviceTransport final : public CaptureTransport {
 public:
  DeviceTransport(Device& device, const Endpoint& endpoint, const DeviceTransportOptions& options)
      : limit_(endpoint.limit),
        on_full_(options.on_full),
        depth_(static_cast<std::uint64_t>(endpoint.ring_depth)),
        ring_(endpoint),
        pinned_(device.pin(ring_.memory())),
        pipeline_(device, endpoint, options.staging_depth, endpoint.ring_depth,
                  [this](const StepPipeline::Arrival& arrival) { hand_over(arrival); }) {}

  const ModelShape& shape() const override { return pipeline_.shape(); }
  std::int64_t max_tokens() const override { return pipeline_.max_tokens(); }

  void compare_all_picks() override { pipeline_.cache().compare_all_picks(); }

  void begin_step(const StepInfo& step, std::int64_t dp_row, Stream& stream) override {
    pipeline_.begin_step(step, dp_row, stream);
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
    // So that acquire() waits for the scheduler only: its error would blame it for a device that is
    // behind, and a device that runs its work inside calls would never get on.
    const auto room = [this] { return pipeline_.in_flight() < depth_; };
    if (on_full_ == OnFull::drop) {
      if (!pipeline_.wait_until(room, Milliseconds(0)) || !ring_.has_room()) {
        pipeline_.skip_step(stream);
        return drop(0);
      }
    }
    if (!pipeline_.wait_until(room, limit_)) throw_behind(limit_);
    std::byte* const record = ring_.acquire().data();
    try {
      pipeline_.publish(slot_mapping, record, stream);
    } catch (...) {
      ring_.give_back();
      throw;
    }
  }

  void skip_step(Stream& stream) override { pipeline_.skip_step(stream); }

  // The reader needs no slots: it takes no older row for one of a step that was dropped.
  void give_up(const Slot*, Stream& stream) noexcept override {
    if (!MOETAP_OFF("H37 the reader hears of it")) drop(1);
    pipeline_.give_up(stream);
  }

  std::vector<StepFailed> take_failures() override { return pipeline_.failures().take(); }
  std::uint64_t num_failed() const override { return pipeline_.failures().count(); }

  void finalize(Step step, Milliseconds limit) override {
    const Step last = std::min(step, pipeline_.published());
    const auto arrived = [&] { return pipeline_.arrived() >= last; };
    if (!pipeline_.wait_until(arrived, limit)) throw_behind(limit);
  }

  DroppedSteps dropped() const override { return ring_.dropped(); }
  void end_request(std::uint64_t, RequestEnd) override {}

 private:
  void drop(std::uint64_t given_up) noexcept {
    ring_.drop({pipeline_.open_step(), pipeline_.open_step(), 1, given_up});
  }

  void hand_over(const StepPipeline::Arrival& arrival) {
    ring_.commit(
        step_descriptor(Descriptor::Kind::step, arrival.step, arrival.num_tokens, arrival.fault));
  }

  [[noreturn]] void throw_behind(Milliseconds limit) const {
    throw TimeoutError(fmt::format(
        "waited {} ms for the device: of the published steps {} have not left it (the last that "
        "has "
        "is {}, the last published is {}); is the stream that they were published on waiting for "
        "something?",
        limit.count(), pipeline_.in_flight(), pipeline_.arrived(), pipeline_.published()));
  }

  Milliseconds limit_;
  OnFull on_full_;
  std::uint64_t depth_;
  ChannelProducer ring_;
  Buffer pinned_;          // the ring's memory
  StepPipeline pipeline_;  // goes first: its copies into the ring must be done before that unmaps
};

}  // namespace

std::unique_ptr<CaptureTransport> make_device_transport(Device& device, const Endpoint& endpoint,
                                                        DeviceTransportOptions options) {
  endpoint.validate();
  if (options.host_cache == HostCache::per_request) {
    if (endpoint.stage != 0 || endpoint.part != 0) {
      throw ArgumentError(fmt::format(
          "stage {}, part {} with HostCache::per_request: nobody joins requests that several ranks "
          "hand over, use HostCache::scheduler",
          endpoint.stage, endpoint.part));
    }
    return make_request_transport(device, endpoint, options);
  }
  return std::make_unique<DeviceTransport>(device, endpoint, options);
}

}  // namespace moetap
