// The worker's end of a rank whose rows another rank publishes.
#include <moetap/transport.h>

namespace moetap {
namespace {

class CaptureOnly final : public Transport {
 public:
  CaptureOnly(Device& device, const Endpoint& endpoint) : Transport(device, endpoint) {}

  void deliver(const Snapshot&, Stream&) override {}
  void give_up(const Snapshot&, std::string_view, Stream&) noexcept override {}
  void finalize(Step, Milliseconds) override {}
};

}  // namespace

std::unique_ptr<Transport> make_capture_only_transport(Device& device, const Endpoint& endpoint) {
  return std::make_unique<CaptureOnly>(device, endpoint);
}

}  // namespace moetap
