// Calls of the CUDA runtime: checked, on a selected GPU; and owners of what they make.
#pragma once

#include <cuda_runtime_api.h>

#include <new>
#include <string>
#include <utility>

namespace moetap::cuda {

// Throws a DeviceError with the call, and its error's name and text.
[[noreturn]] void fail(const std::string& call, cudaError_t error);

inline void check(cudaError_t error, const char* call) {
  if (error != cudaSuccess) fail(call, error);
}

#define MOETAP_CUDA(function, ...) ::moetap::cuda::check(function(__VA_ARGS__), #function)

// Selects a GPU for the calling thread, and lets it make any call while another stream of the
// process records a graph (ours never touch that stream); restores both.
class Scope {
 public:
  explicit Scope(int device) : Scope(device, std::nothrow) { check(error_, "cudaSetDevice"); }
  // For destructors, which have nobody to tell.
  Scope(int device, std::nothrow_t) noexcept {
    error_ = cudaGetDevice(&before_);
    if (error_ == cudaSuccess && before_ != device) {
      error_ = cudaSetDevice(device);
      switched_ = true;
    }
    cudaThreadExchangeStreamCaptureMode(&mode_);
  }
  ~Scope() {
    cudaThreadExchangeStreamCaptureMode(&mode_);
    if (switched_) cudaSetDevice(before_);
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  int before_ = 0;
  bool switched_ = false;
  cudaError_t error_ = cudaSuccess;
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// Owns a handle. What its destructor cannot do (a broken or ended context) an earlier call has
// reported.
template <class Handle, cudaError_t (*destroy)(Handle)>
class Owner {
 public:
  Owner() = default;
  explicit Owner(Handle handle) : handle_(handle) {}
  Owner(Owner&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Owner& operator=(Owner&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Owner() {
    if (handle_ != nullptr) destroy(handle_);
  }

  Handle get() const { return handle_; }
  Handle* out() { return &handle_; }  // for the call that makes it

 private:
  Handle handle_ = nullptr;
};

using OwnedStream = Owner<cudaStream_t, cudaStreamDestroy>;
using OwnedEvent = Owner<cudaEvent_t, cudaEventDestroy>;
using OwnedGraph = Owner<cudaGraph_t, cudaGraphDestroy>;
using OwnedGraphExec = Owner<cudaGraphExec_t, cudaGraphExecDestroy>;

}  // namespace moetap::cuda
