#include "call.h"

#include <moetap/cuda_kernel.h>
#include <moetap/error.h>

#include <fmt/format.h>

namespace moetap {

void cuda::fail(const std::string& call, cudaError_t error) {
  (void)cudaGetLastError();  // said here, so not to be found again by a later call
  throw DeviceError(
      static_cast<int>(error),
      fmt::format("{}: {} ({})", call, cudaGetErrorName(error), cudaGetErrorString(error)));
}

void check_cuda_launch(const char* kernel, int error) {
  const auto cuda_error = static_cast<cudaError_t>(error);
  if (cuda_error != cudaSuccess) cuda::fail(fmt::format("launch of {}", kernel), cuda_error);
}

}  // namespace moetap
