// The host device whose streams are threads.
#include <moetap/host_device.h>

#include <memory>
#include <string>

#include "gpu/device/host/host_device.h"
#include "gpu/device/host/thread_stream.h"

namespace moetap {
namespace host {
namespace {

class ThreadDevice final : public HostDevice<Device>, public StreamList {
 public:
  std::string name() const override { return "host"; }

  std::unique_ptr<Stream> make_stream() override {
    return std::make_unique<ThreadStream>(*this, *this);
  }

 private:
  bool poll(const Point& point) override { return point.reached(); }

  void wait(const Point& point) override {
    if (point.timeline != nullptr) point.timeline->wait(point.count);
  }

  void wait_all() override {
    for (const Point& point : ends()) wait(point);
  }
};

}  // namespace
}  // namespace host

std::unique_ptr<Device> make_host_device() { return std::make_unique<host::ThreadDevice>(); }

}  // namespace moetap
