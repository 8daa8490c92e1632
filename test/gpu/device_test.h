// A test on every kind of device, and a way to hold a stream back on each.
#pragma once

#include <atomic>
#include <memory>

#include "devices.h"

namespace moetap::test {

class DeviceTest : public testing::TestWithParam<DeviceMaker> {
 protected:
  std::unique_ptr<Device> device = GetParam()();
};

#define MOETAP_ON_EVERY_DEVICE(Suite) \
  INSTANTIATE_TEST_SUITE_P(, Suite, testing::ValuesIn(every_device()), device_name)

// Keeps the work that is queued on a stream from now on from running until release(), or, on a
// seeded device, until a wait needs it.
class Delay {
 public:
  Delay(Device& device, Stream& stream)
      : seeded_(dynamic_cast<SeededDevice*>(&device)), stream_(stream) {
    if (seeded_ != nullptr) {
      seeded_->hold(stream, true);
    } else {
      stream.call([](void* gate) { static_cast<std::atomic<bool>*>(gate)->wait(false); }, &open_);
    }
  }
  ~Delay() {
    release();
    stream_.synchronize();
  }
  Delay(const Delay&) = delete;
  Delay& operator=(const Delay&) = delete;

  void release() {
    if (seeded_ != nullptr) return seeded_->hold(stream_, false);
    open_ = true;
    open_.notify_all();
  }

 private:
  SeededDevice* seeded_;
  Stream& stream_;
  std::atomic<bool> open_{false};
};

}  // namespace moetap::test
