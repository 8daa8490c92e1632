// The worker's end of a rank whose rows another rank publishes.
#include <moetap/device_cache.h>
#include <moetap/topk_ids.h>
#include <moetap/transports.h>

#include <vector>

#include "gpu/capture/owner_name.h"

namespace moetap {
namespace {

class CaptureOnlyTransport final : public CaptureTransport {
 public:
  CaptureOnlyTransport(Device& device, const Endpoint& endpoint)
      : cache_(device, endpoint.shape, endpoint.max_tokens, owner_name(endpoint)) {}

  const ModelShape& shape() const override { return cache_.shape(); }
  std::int64_t max_tokens() const override { return cache_.max_tokens(); }

  void compare_all_picks() override { cache_.compare_all_picks(); }

  void begin_step(const StepInfo& step, std::int64_t dp_row, Stream& stream) override {
    cache_.begin_step(step.step, step.num_tokens, dp_row, stream);
  }
  void capture(int layer, const TopkIds& topk_ids, std::int64_t first_row,
               Stream& stream) override {
    cache_.capture(layer, topk_ids, first_row, stream);
  }
  void route_sink(int layer, std::int64_t first_row, std::int64_t end_row, int shared_columns,
                  RouteSink& sink) override {
    sink = cache_.sink(layer, first_row, end_row, shared_columns);
  }
  RouteOutput route_output(int layer) override { return cache_.route_output(layer); }
  void publish(const Slot*, Stream& stream) override { cache_.end_step(stream); }
  void skip_step(Stream& stream) override { cache_.end_step(stream); }
  void give_up(const Slot*, Stream& stream) noexcept override { cache_.abandon_step(stream); }
  std::vector<StepFailed> take_failures() override { return {}; }
  std::uint64_t num_failed() const override { return 0; }
  void finalize(Step, Milliseconds) override {}
  void end_request(std::uint64_t, RequestEnd) override {}

 private:
  DeviceCache cache_;
};

}  // namespace

std::unique_ptr<CaptureTransport> make_capture_only_transport(Device& device,
                                                              const Endpoint& endpoint) {
  endpoint.validate();
  return std::make_unique<CaptureOnlyTransport>(device, endpoint);
}

}  // namespace moetap
