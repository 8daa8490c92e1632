// Kernels are written once, as a struct of arguments with operator()(Block) that both the host
// compiler and nvcc compile. One call works on block `index` of the grid. The lanes of a block
// share its work by striding: for (i = lane; i < n; i += lanes). Lanes may run in any order or
// concurrently, and do not see each other's writes.
#pragma once

#include <moetap/device_code.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <type_traits>

namespace moetap {

struct Block {
  std::int64_t index;
  int lane;
  int lanes;
};

// How each kind of device launches a kernel type, and loads it beforehand. `cuda` and `cuda_load`
// are null in a build without CUDA.
struct KernelEntry {
  const char* name;
  void (*host)(const void* arguments, Block block);
  void (*cuda)(const void* arguments, std::int64_t blocks, void* cuda_stream);
  void (*cuda_load)();
};

// Defined once for each kernel type, next to the kernel: MOETAP_DEFINE_KERNEL(CaptureKernel).
template <class Kernel>
struct KernelEntryOf {
  static const KernelEntry entry;
};

// A kernel with its arguments, copied by value as CUDA does at a launch.
class KernelCall {
 public:
  static constexpr std::size_t kMaxArguments = 192;

  template <class Kernel>
  KernelCall(const Kernel& kernel, std::int64_t blocks)
      : entry_(&KernelEntryOf<Kernel>::entry), blocks_(blocks) {
    static_assert(std::is_trivially_copyable_v<Kernel> && sizeof(Kernel) <= kMaxArguments &&
                  alignof(Kernel) <= 16);
    std::memcpy(arguments_, &kernel, sizeof kernel);
  }

  const KernelEntry& entry() const { return *entry_; }
  const void* arguments() const { return arguments_; }
  std::int64_t blocks() const { return blocks_; }

 private:
  const KernelEntry* entry_;
  std::int64_t blocks_;
  alignas(16) std::byte arguments_[kMaxArguments];
};

template <class Kernel>
void run_on_host(const void* arguments, Block block) {
  (*static_cast<const Kernel*>(arguments))(block);
}

#define MOETAP_KERNEL_ENTRY(Kernel, cuda, cuda_load)                   \
  template <>                                                          \
  const ::moetap::KernelEntry moetap::KernelEntryOf<Kernel>::entry = { \
      #Kernel, &::moetap::run_on_host<Kernel>, cuda, cuda_load}

// For kernels that run on hosts only, or that a .cc file has no CUDA code for.
#define MOETAP_DEFINE_HOST_KERNEL(Kernel) MOETAP_KERNEL_ENTRY(Kernel, nullptr, nullptr)

// With MOETAP_WITH_CUDA defined, a .cu file must name the kernel too: see <moetap/cuda_kernel.h>.
#if defined(MOETAP_WITH_CUDA)
template <class Kernel>
void run_on_cuda(const void* arguments, std::int64_t blocks, void* cuda_stream);  // in a .cu file
template <class Kernel>
void load_on_cuda();  // also in a .cu file
#define MOETAP_DEFINE_KERNEL(Kernel) \
  MOETAP_KERNEL_ENTRY(Kernel, &::moetap::run_on_cuda<Kernel>, &::moetap::load_on_cuda<Kernel>)
#else
#define MOETAP_DEFINE_KERNEL(Kernel) MOETAP_DEFINE_HOST_KERNEL(Kernel)
#endif

}  // namespace moetap
