#include <moetap/cuda_device.h>
#include <moetap/error.h>

#include <fmt/format.h>

#include "gpu/device/cuda/call.h"
#include "gpu/device/cuda/stream.h"

namespace moetap {
namespace cuda {
namespace {

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int index) : index_(index) {}

  std::string name() const override { return fmt::format("cuda:{}", index_); }
  int index() const { return index_; }

  Buffer allocate(std::size_t bytes) override {
    if (bytes == 0) return {};
    const Scope scope(index_);
    void* data = nullptr;
    require_memory("cudaMalloc", cudaMalloc(&data, bytes), bytes);
    return {*this, data, bytes, &release<cudaFree>};
  }

  Buffer allocate_pinned(std::size_t bytes) override {
    if (bytes == 0) return {};
    const Scope scope(index_);
    void* data = nullptr;
    require_memory("cudaHostAlloc", cudaHostAlloc(&data, bytes, cudaHostAllocDefault), bytes);
    return {*this, data, bytes, &release<cudaFreeHost>};
  }

  Buffer pin(std::span<std::byte> memory) override {
    if (memory.empty()) return {};
    const Scope scope(index_);
    const cudaError_t error =
        cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterDefault);
    if (error == cudaErrorHostMemoryAlreadyRegistered) {
      (void)cudaGetLastError();
      throw ArgumentError(fmt::format("cannot pin {} bytes at {}: some of them are pinned already",
                                      memory.size(), static_cast<const void*>(memory.data())));
    }
    check(error, "cudaHostRegister");
    return {*this, memory.data(), memory.size(), &release<cudaHostUnregister>};
  }

  std::unique_ptr<Stream> make_stream() override {
    const Scope scope(index_);
    OwnedStream stream(index_);
    MOETAP_CUDA(cudaStreamCreateWithFlags, stream.out(), cudaStreamNonBlocking);
    return std::make_unique<OwnCudaStream>(index_, streams_, std::move(stream));
  }

  std::unique_ptr<Event> make_event() override { return std::make_unique<CudaEvent>(index_); }

  void load(const KernelEntry& kernel) override {
    require_cuda(kernel);
    const Scope scope(index_);
    kernel.cuda_load();
  }

 private:
  static void require_memory(const char* call, cudaError_t error, std::size_t bytes) {
    if (error == cudaSuccess) return;
    fail(fmt::format("{} of {} bytes (make max_tokens or the ring smaller if they do not fit)",
                     call, bytes),
         error);
  }

  // Errors cannot be reported here: a broken or destroyed context was reported by earlier calls.
  template <cudaError_t (*free)(void*)>
  static void release(Device& device, void* data, std::size_t) {
    const auto& self = static_cast<CudaDevice&>(device);
    const Scope scope(self.index_, std::nothrow);
    self.streams_.synchronize();
    free(data);
  }

  int index_;
  StreamList streams_;
};

// The number of GPUs; 0 with the reason.
int count_devices(std::string& reason) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver) {
    (void)cudaGetLastError();
    reason = fmt::format("{} ({}){}", cudaGetErrorName(error), cudaGetErrorString(error),
                         error == cudaErrorInsufficientDriver
                             ? ": there is no NVIDIA driver, or one older than this CUDA"
                             : "");
    return 0;
  }
  check(error, "cudaGetDeviceCount");
  if (count == 0) reason = "the driver shows no GPU";
  return count;
}

}  // namespace
}  // namespace cuda

std::optional<std::string> why_no_cuda() {
  std::string reason;
  if (cuda::count_devices(reason) > 0) return std::nullopt;
  return reason;
}

std::unique_ptr<Device> make_cuda_device(int index) {
  std::string reason;
  const int count = cuda::count_devices(reason);
  if (count > 0) reason = fmt::format("CUDA shows {} here, numbered from 0", count);
  if (index < 0 || index >= count) {
    throw ArgumentError(fmt::format(
        "there is no GPU {}: {}; see CUDA_VISIBLE_DEVICES, or use 'host'", index, reason));
  }
  return std::make_unique<cuda::CudaDevice>(index);
}

std::unique_ptr<Stream> wrap_stream(Device& device, void* cuda_stream) {
  const auto* gpu = dynamic_cast<cuda::CudaDevice*>(&device);
  if (gpu == nullptr) {
    throw ArgumentError(
        fmt::format("a CUDA stream cannot be one of device '{}': open the GPU", device.name()));
  }
  return std::make_unique<cuda::CudaStream>(gpu->index(), static_cast<cudaStream_t>(cuda_stream));
}

}  // namespace moetap
