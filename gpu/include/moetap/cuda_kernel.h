// Makes kernels launchable on a GPU. Include this header in a .cu file and name the kernels there:
//
//   MOETAP_CUDA_KERNEL(MyKernel);
//
// and compile the file that has MOETAP_DEFINE_KERNEL(MyKernel) with MOETAP_WITH_CUDA defined.
#pragma once

#include <moetap/export.h>
#include <moetap/kernel.h>

#include <cstdint>

namespace moetap {

// Throws a DeviceError that names the kernel unless `cuda_error` is cudaSuccess.
MOETAP_API void check_cuda_launch(const char* kernel, int cuda_error);
MOETAP_API void check_cuda_load(const char* kernel, int cuda_error);

}  // namespace moetap

#if defined(__CUDACC__)
namespace moetap {

// Threads per block, which are the kernel's lanes: Kernel::kLanes if defined.
template <class Kernel>
MOETAP_DEVICE constexpr int cuda_lanes() {
  if constexpr (requires { Kernel::kLanes; }) {
    return Kernel::kLanes;
  } else {
    return 128;
  }
}

template <class Kernel>
__global__ void __launch_bounds__(cuda_lanes<Kernel>())
    run_cuda_block(const __grid_constant__ Kernel kernel) {
  kernel(Block{static_cast<std::int64_t>(blockIdx.x), static_cast<int>(threadIdx.x),
               cuda_lanes<Kernel>()});
}

template <class Kernel>
void run_on_cuda(const void* arguments, std::int64_t blocks, void* cuda_stream) {
  void* parameters[] = {const_cast<void*>(arguments)};
  const cudaError_t error = cudaLaunchKernel(
      reinterpret_cast<const void*>(&run_cuda_block<Kernel>), dim3(static_cast<unsigned>(blocks)),
      dim3(cuda_lanes<Kernel>()), parameters, 0, static_cast<cudaStream_t>(cuda_stream));
  check_cuda_launch(KernelEntryOf<Kernel>::entry.name, static_cast<int>(error));
}

// With CUDA's lazy loading a kernel is loaded at its first use. This may happen during a graph
// capture, or wait for running kernels:
// https://docs.nvidia.com/cuda/cuda-c-programming-guide/#lazy-loading
template <class Kernel>
void load_on_cuda() {
  cudaFuncAttributes attributes;
  const cudaError_t error =
      cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(&run_cuda_block<Kernel>));
  check_cuda_load(KernelEntryOf<Kernel>::entry.name, static_cast<int>(error));
}

}  // namespace moetap

#define MOETAP_CUDA_KERNEL(Kernel)                                             \
  template void moetap::run_on_cuda<Kernel>(const void*, std::int64_t, void*); \
  template void moetap::load_on_cuda<Kernel>()
#endif
