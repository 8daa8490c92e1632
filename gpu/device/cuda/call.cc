#include "gpu/device/cuda/call.h"

#include <moetap/cuda_kernel.h>
#include <moetap/error.h>

#include <cudaTypedefs.h>
#include <fmt/format.h>

#include <array>
#include <atomic>
#include <cstddef>

namespace moetap {
namespace cuda {
namespace {

// A driver function, looked up by the runtime: programs that link the driver's library would not
// start without it. Null if the driver does not have the function.
template <class Function>
Function find(const char* name, unsigned version) noexcept {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &result);
  if (error != cudaSuccess) (void)cudaGetLastError();
  return error == cudaSuccess && result == cudaDriverEntryPointSuccess
             ? reinterpret_cast<Function>(found)
             : nullptr;
}

struct Driver {
  PFN_cuCtxGetCurrent_v4000 get_current = find<PFN_cuCtxGetCurrent_v4000>("cuCtxGetCurrent", 4000);
  PFN_cuCtxSetCurrent_v4000 set_current = find<PFN_cuCtxSetCurrent_v4000>("cuCtxSetCurrent", 4000);
  PFN_cuDeviceGet_v2000 get_device = find<PFN_cuDeviceGet_v2000>("cuDeviceGet", 2000);
  PFN_cuDevicePrimaryCtxRetain_v7000 retain_primary =
      find<PFN_cuDevicePrimaryCtxRetain_v7000>("cuDevicePrimaryCtxRetain", 7000);

  bool complete() const {
    return get_current != nullptr && set_current != nullptr && get_device != nullptr &&
           retain_primary != nullptr;
  }
};

const Driver& driver() noexcept {
  static const Driver driver;
  return driver;
}

// The runtime's error numbers are the driver's.
cudaError_t runtime_error(CUresult result) { return static_cast<cudaError_t>(result); }

// A GPU's primary context, retained for the life of the process, as the runtime does.
cudaError_t primary_context(int device, CUcontext& context) noexcept {
  static std::array<std::atomic<CUcontext>, 128> retained;
  const auto index = static_cast<std::size_t>(device);
  if (index >= retained.size()) return cudaErrorInvalidDevice;
  context = retained[index].load(std::memory_order_acquire);
  if (context != nullptr) return cudaSuccess;
  CUdevice gpu = 0;
  CUresult result = driver().get_device(&gpu, device);
  if (result == CUDA_SUCCESS) result = driver().retain_primary(&context, gpu);
  if (result == CUDA_SUCCESS) retained[index].store(context, std::memory_order_release);
  return runtime_error(result);
}

}  // namespace

void fail(const std::string& call, cudaError_t error) {
  (void)cudaGetLastError();  // reported here, so a later call must not find it again
  throw DeviceError(
      static_cast<int>(error),
      fmt::format("{}: {} ({})", call, cudaGetErrorName(error), cudaGetErrorString(error)));
}

Scope::Scope(int device, std::nothrow_t) noexcept {
  CUcontext own = nullptr;
  error_ = driver().complete() ? primary_context(device, own) : cudaErrorInsufficientDriver;
  if (error_ == cudaSuccess) error_ = runtime_error(driver().get_current(&before_));
  if (error_ == cudaSuccess && before_ != own) {
    error_ = runtime_error(driver().set_current(own));
    switched_ = error_ == cudaSuccess;
  }
  if (error_ == cudaSuccess) cudaThreadExchangeStreamCaptureMode(&mode_);
}

Scope::~Scope() {
  if (error_ != cudaSuccess) return;
  cudaThreadExchangeStreamCaptureMode(&mode_);
  if (switched_) driver().set_current(before_);
}

}  // namespace cuda

void check_cuda_launch(const char* kernel, int error) {
  const auto cuda_error = static_cast<cudaError_t>(error);
  if (cuda_error != cudaSuccess) cuda::fail(fmt::format("launch of {}", kernel), cuda_error);
}

void check_cuda_load(const char* kernel, int error) {
  const auto cuda_error = static_cast<cudaError_t>(error);
  if (cuda_error != cudaSuccess) cuda::fail(fmt::format("loading of {}", kernel), cuda_error);
}

}  // namespace moetap
