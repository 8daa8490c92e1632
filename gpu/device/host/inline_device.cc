// The host device that runs everything at once, in the calling thread.
#include <moetap/host_device.h>

#include <memory>
#include <string>

#include "gpu/device/host/host_device.h"

namespace moetap {
namespace host {
namespace {

class InlineStream final : public HostStream {
 public:
  explicit InlineStream(Executor& executor) : HostStream(executor) {}

  Point end() const override { return {}; }  // always reached: no work is ever queued

 private:
  void enqueue(Operation operation) override { run(operation); }
};

class InlineDevice final : public HostDevice<Device> {
 public:
  std::string name() const override { return "inline"; }

  std::unique_ptr<Stream> make_stream() override { return std::make_unique<InlineStream>(*this); }

 private:
  bool poll(const Point&) override { return true; }
  void wait(const Point&) override {}
  void wait_all() override {}
};

}  // namespace
}  // namespace host

std::unique_ptr<Device> make_inline_device() { return std::make_unique<host::InlineDevice>(); }

}  // namespace moetap
