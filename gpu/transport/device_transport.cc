// The `device` transport's worker end where the scheduler keeps the rows: copies go straight into
// the ring that the scheduler drains.
#include <moetap/error.h>
#include <moetap/transport.h>

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "gpu/transport/patience.h"
#include "gpu/transport/request_transport.h"
#include "gpu/transport/step_descriptor.h"
#include "gpu/transport/step_pipeline.h"
#include "ipc/internal/channel.h"
#include "lib/internal/injection.h"
#include "lib/internal/number_format.h"

namespace moetap {
namespace {

class DeviceTransport final : public Transport {
 public:
  DeviceTransport(Device& device, const Endpoint& endpoint, const DeviceTransportOptions& options)
      : Transport(device, endpoint),
        on_full_(options.on_full),
        depth_(static_cast<std::uint64_t>(endpoint.ring_depth)),
        ring_(endpoint),
        pinned_(device.pin(ring_.memory())),
        pipeline_(device, endpoint, options.staging_depth, endpoint.ring_depth, failures(),
                  [this](const StepPipeline::Arrival& arrival) { hand_over(arrival); }) {}

  void deliver(const Snapshot& step, Stream& stream) override {
    // So that acquire() waits only for the scheduler. Otherwise its error would blame the scheduler
    // for a slow device, and a device that runs its work inside calls would make no progress.
    const auto room = [this] { return pipeline_.in_flight() < depth_; };
    std::byte* record = nullptr;
    if (on_full_ == OnFull::drop) {
      if (!pipeline_.wait_until(room, Milliseconds(0)) || !ring_.has_room()) {
        return drop(step.step(), 0);
      }
    }
    try {
      if (!pipeline_.wait_until(room, endpoint().timeout)) throw_behind(endpoint().timeout);
      record = acquire();
    } catch (const TimeoutError&) {
      without_room_ = step.step();
      throw;
    }
    try {
      pipeline_.publish(step, record, stream);
    } catch (...) {
      ring_.give_back();
      throw;
    }
  }

  // The reader needs no slots: it does not take an older row for one of a dropped step.
  void give_up(const Snapshot& step, std::string_view why, Stream&) noexcept override {
    const bool had_room = without_room_ != step.step();
    if (!MOETAP_OFF("H37 the reader hears of it")) drop(step.step(), had_room ? 1 : 0);
    failures().add(step.step(), why);
  }

  void finalize(Step step, Milliseconds timeout) override {
    const Step last = std::min(step, pipeline_.published());
    const auto arrived = [&] { return pipeline_.arrived() >= last; };
    if (!pipeline_.wait_until(arrived, timeout)) throw_behind(timeout);
  }

  DroppedSteps dropped() const override { return ring_.dropped(); }

 private:
  std::byte* acquire() {
    try {
      return ring_.acquire(patience_.next(ring_)).data();
    } catch (const TimeoutError&) {
      patience_.ended(ring_);
      throw;
    }
  }

  void drop(Step step, std::uint64_t given_up) noexcept { ring_.drop({step, step, 1, given_up}); }

  void hand_over(const StepPipeline::Arrival& arrival) {
    ring_.commit(
        step_descriptor(Descriptor::Kind::step, arrival.step, arrival.num_tokens, arrival.fault));
  }

  [[noreturn]] void throw_behind(Milliseconds timeout) const {
    throw TimeoutError(fmt::format(
        "waited {} ms for the device: of the published steps {} have not left it (the last that "
        "has is {}, the last published is {}); is the stream that they were published on waiting "
        "for "
        "something?",
        timeout.count(), pipeline_.in_flight(), pipeline_.arrived(), pipeline_.published()));
  }

  OnFull on_full_;
  std::uint64_t depth_;
  ChannelProducer ring_;
  Patience patience_{endpoint().timeout};
  Step without_room_ = 0;  // the last step for which there was none in time
  Buffer pinned_;          // the ring's memory
  StepPipeline pipeline_;  // destroyed first: its copies into the ring must be done before the ring
                           // is unmapped
};

}  // namespace

std::unique_ptr<Transport> make_device_transport(Device& device, const Endpoint& endpoint,
                                                 DeviceTransportOptions options) {
  if (options.host_cache == HostCache::per_request) {
    if (endpoint.stage != 0 || endpoint.part != 0) {
      throw ArgumentError(fmt::format(
          "stage {}, part {} with HostCache::per_request: requests that several ranks hand "
          "over are not joined; use HostCache::scheduler",
          endpoint.stage, endpoint.part));
    }
    return make_request_transport(device, endpoint, options);
  }
  return std::make_unique<DeviceTransport>(device, endpoint, options);
}

}  // namespace moetap
