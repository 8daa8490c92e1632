// GPUs. In a build without CUDA there are none, and that is what the messages say.
#pragma once

#include <moetap/device.h>

#include <memory>
#include <optional>
#include <string>

namespace moetap {

// Why this process can have no GPU (no driver, none visible, a build without CUDA), or nothing if
// it can. DeviceError if the driver is there and fails in another way.
std::optional<std::string> why_no_cuda();

// GPU `index` of those that CUDA shows this process. It uses the primary context, as the CUDA
// runtime and PyTorch do; each call selects the GPU for the calling thread and restores what was
// selected before. ArgumentError that says why if there is no such GPU.
std::unique_ptr<Device> make_cuda_device(int index);

// An engine's own stream (its cudaStream_t or CUstream) as a Stream: a view that must not outlive
// it. Captures that the engine begins on it are seen: what may not be part of a graph is a
// StateError. So is work on the legacy default stream while another stream records one. Freeing
// memory of `device` waits for streams that `device` made, not for this one. ArgumentError if
// `device` is no GPU.
std::unique_ptr<Stream> wrap_stream(Device& device, void* cuda_stream);

}  // namespace moetap
