// The devices that tests run on, and data on its way to and from one.
#pragma once

#include <moetap/device.h>
#include <moetap/host_device.h>

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

namespace moetap::test {

// Made in the test and not before it: a test that forks must do so before a device has threads.
struct DeviceMaker {
  std::string name;
  std::unique_ptr<Device> (*make)(std::uint64_t seed);
  std::uint64_t seed = 0;

  std::unique_ptr<Device> operator()() const { return make(seed); }
};
inline std::ostream& operator<<(std::ostream& out, const DeviceMaker& maker) {
  return out << maker.name;
}

inline std::vector<DeviceMaker> every_host_device() {
  std::vector<DeviceMaker> makers = {
      {"host", [](std::uint64_t) { return make_host_device(); }},
      {"inline", [](std::uint64_t) { return make_inline_device(); }},
  };
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    makers.push_back(
        {"seeded" + std::to_string(seed),
         [](std::uint64_t s) -> std::unique_ptr<Device> { return make_seeded_device(s); }, seed});
  }
  return makers;
}

inline bool runs_at_once(const Device& device) { return device.name() == "inline"; }

// Whether a GPU is to be expected here. Does not ask CUDA, after which no child process could.
inline bool expect_gpu() {
#if defined(MOETAP_WITH_CUDA)
  return ::access("/dev/nvidiactl", F_OK) == 0 || ::access("/dev/dxg", F_OK) == 0;
#else
  return false;
#endif
}

// `cuda` too where there is a GPU; where there is none, Cuda.RunsTheTestsOfEveryDevice says why.
inline std::vector<DeviceMaker> every_device() {
  std::vector<DeviceMaker> makers = every_host_device();
  if (!expect_gpu()) return makers;
  // A kernel that is loaded when it is first launched may wait for one that a test holds back.
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  makers.push_back({"cuda", [](std::uint64_t) { return open_device("cuda"); }});
  return makers;
}

// Those that run work on threads or a chip of their own, and so at a speed that a test can change.
inline std::vector<DeviceMaker> every_real_device() {
  std::vector<DeviceMaker> makers = every_device();
  std::erase_if(makers, [](const DeviceMaker& maker) {
    return maker.name.starts_with("seeded") || maker.name == "inline";
  });
  return makers;
}

inline std::string device_name(const ::testing::TestParamInfo<DeviceMaker>& info) {
  return info.param.name;
}

// Copies to the device, when all that is queued on the stream before it is done.
template <class T>
Buffer upload(Device& device, Stream& stream, const std::vector<T>& values) {
  const std::size_t bytes = values.size() * sizeof(T);
  Buffer to = device.allocate(bytes);
  const Buffer from = device.allocate_pinned(bytes);
  if (bytes == 0) return to;
  std::memcpy(from.data(), values.data(), bytes);
  stream.copy(to.data(), from.data(), bytes);
  stream.synchronize();
  return to;
}

template <class T = std::byte>
std::vector<T> download(Device& device, Stream& stream, const void* from, std::size_t count) {
  std::vector<T> values(count);
  if (count == 0) return values;
  const Buffer to = device.allocate_pinned(count * sizeof(T));
  stream.copy(to.data(), from, to.size());
  stream.synchronize();
  std::memcpy(values.data(), to.data(), to.size());
  return values;
}

}  // namespace moetap::test
