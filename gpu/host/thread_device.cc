// The host device whose streams are threads.
#include <moetap/host_device.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "host_device.h"
#include "thread_stream.h"

namespace moetap {
namespace host {
namespace {

class ThreadDevice final : public HostDevice<Device>, public StreamList {
 public:
  std::string name() const override { return "host"; }

  std::unique_ptr<Stream> make_stream() override {
    return std::make_unique<ThreadStream>(*this, *this);
  }

  bool reached(const Point& point) override {
    refuse_in_callback("asking for progress");
    return point.reached();
  }

  void block_until(const Point& point) override {
    refuse_in_callback("waiting");
    if (point.timeline != nullptr) point.timeline->wait(point.count);
  }

  void block_until_all_done() override {
    for (const Point& point : ends()) block_until(point);
  }
};

}  // namespace
}  // namespace host

std::unique_ptr<Device> make_host_device() { return std::make_unique<host::ThreadDevice>(); }

}  // namespace moetap
