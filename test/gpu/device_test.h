// A test on every kind of device, and a way to hold a stream back on each.
#pragma once

#include <cstdint>
#include <memory>

#include "test/gpu/devices.h"
#include "test/gpu/test_kernels.h"

namespace moetap::test {

class DeviceTest : public testing::TestWithParam<DeviceMaker> {
 protected:
  std::unique_ptr<Device> device = GetParam()();
};

#define MOETAP_ON_EVERY_DEVICE(Suite) \
  INSTANTIATE_TEST_SUITE_P(, Suite, testing::ValuesIn(every_device()), device_name)
#define MOETAP_ON_EVERY_HOST_DEVICE(Suite) \
  INSTANTIATE_TEST_SUITE_P(, Suite, testing::ValuesIn(every_host_device()), device_name)

// Keeps the work that is queued on a stream from now on from running until release(), or, on a
// seeded device, until a wait needs it. On an inline device nothing waits. On a GPU a kernel spins:
// a callback that waits would hold those of other streams too.
class Delay {
 public:
  Delay(Device& device, Stream& stream)
      : seeded_(dynamic_cast<SeededDevice*>(&device)), stream_(stream) {
    if (seeded_ != nullptr) {
      seeded_->hold(stream, true);
    } else if (!runs_at_once(device)) {
      gate_ = device.allocate_pinned(sizeof(std::uint32_t));
      *gate_.as<std::uint32_t>() = 0;
      stream.launch(Spin{gate_.as<std::uint32_t>()}, 1);
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
    if (gate_.size() != 0) __atomic_store_n(gate_.as<std::uint32_t>(), 1U, __ATOMIC_RELEASE);
  }

 private:
  SeededDevice* seeded_;
  Stream& stream_;
  Buffer gate_;
};

}  // namespace moetap::test
