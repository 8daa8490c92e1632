// A device that knows which streams were made on it, so that a test can hold back one that the code
// under test keeps to itself.
#pragma once

#include <moetap/host_device.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace moetap::test {

class WatchedDevice final : public Device {
 public:
  explicit WatchedDevice(std::unique_ptr<Device> device) : device_(std::move(device)) {}

  std::string name() const override { return device_->name(); }
  Buffer allocate(std::size_t bytes) override { return device_->allocate(bytes); }
  Buffer allocate_pinned(std::size_t bytes) override { return device_->allocate_pinned(bytes); }
  Buffer pin(std::span<std::byte> memory) override { return device_->pin(memory); }
  std::unique_ptr<Event> make_event() override { return device_->make_event(); }
  void load(const KernelEntry& kernel) override { device_->load(kernel); }
  std::unique_ptr<Stream> make_stream() override {
    std::unique_ptr<Stream> stream = device_->make_stream();
    last_stream_ = stream.get();
    return stream;
  }

  Stream& last_stream() { return *last_stream_; }

 private:
  std::unique_ptr<Device> device_;
  Stream* last_stream_ = nullptr;
};

}  // namespace moetap::test
