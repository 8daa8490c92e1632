// Checked CUDA runtime calls on a selected GPU, and owners of the handles that they create.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <new>
#include <string>
#include <utility>

#include "lib/internal/export.h"

namespace moetap::cuda {

// Throws a DeviceError with the call and the error's name and text.
[[noreturn]] MOETAP_INTERNAL_API void fail(const std::string& call, cudaError_t error);

inline void check(cudaError_t error, const char* call) {
  if (error != cudaSuccess) fail(call, error);
}

#define MOETAP_CUDA(function, ...) ::moetap::cuda::check(function(__VA_ARGS__), #function)

// Selects a GPU for the calling thread, and allows any call while another stream of the process
// records a graph (ours never touch that stream). Restores both.
//
// This selects the driver's current context, not cudaSetDevice's number. Restoring that number on a
// thread that never chose a GPU would create a context on GPU 0. It would also lose an engine's own
// context that is not the primary one.
class MOETAP_INTERNAL_API Scope {
 public:
  explicit Scope(int device) : Scope(device, std::nothrow) {
    check(error_, "selecting the GPU's primary context");
  }
  // For destructors, which cannot report errors.
  Scope(int device, std::nothrow_t) noexcept;
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  CUcontext before_ = nullptr;
  bool switched_ = false;
  cudaError_t error_ = cudaSuccess;
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// Owns a CUDA handle. If its destructor fails (a broken or destroyed context), an earlier call has
// reported it.
template <class Handle, cudaError_t (*destroy)(Handle)>
class Owner {
 public:
  explicit Owner(int device) : device_(device) {}
  Owner(Owner&& other) noexcept
      : device_(other.device_), handle_(std::exchange(other.handle_, nullptr)) {}
  Owner& operator=(Owner&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Owner() {
    if (handle_ == nullptr) return;
    const Scope scope(device_, std::nothrow);
    destroy(handle_);
  }

  Handle get() const { return handle_; }
  Handle* out() { return &handle_; }  // for the call that creates it

 private:
  int device_;
  Handle handle_ = nullptr;
};

using OwnedStream = Owner<cudaStream_t, cudaStreamDestroy>;
using OwnedEvent = Owner<cudaEvent_t, cudaEventDestroy>;
using OwnedGraph = Owner<cudaGraph_t, cudaGraphDestroy>;
using OwnedGraphExec = Owner<cudaGraphExec_t, cudaGraphExecDestroy>;

}  // namespace moetap::cuda
