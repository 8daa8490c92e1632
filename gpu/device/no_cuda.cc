// The GPU functions of a build without CUDA.
#include <moetap/cuda_device.h>
#include <moetap/error.h>

#include <fmt/format.h>

namespace moetap {

std::optional<std::string> why_no_cuda() {
  return "this build of moetap has no CUDA device; build moetap-gpu where Meson finds nvcc";
}

std::unique_ptr<Device> make_cuda_device(int index) {
  throw ArgumentError(fmt::format("there is no GPU {}: {}", index, *why_no_cuda()));
}

std::unique_ptr<Stream> wrap_stream(Device& device, void*) {
  throw ArgumentError(
      fmt::format("a CUDA stream cannot be one of device '{}': {}", device.name(), *why_no_cuda()));
}

}  // namespace moetap
