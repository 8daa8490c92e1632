// GPUs. A build without CUDA has none, and its messages say so.
#pragma once

#include <moetap/device.h>
#include <moetap/export.h>

#include <memory>
#include <optional>
#include <string>

namespace moetap {

// Why this process cannot use a GPU: no driver, none visible, or a build without CUDA. nullopt if
// it can. DeviceError if the driver is there and fails in another way.
MOETAP_API std::optional<std::string> why_no_cuda();

// Opens GPU `index` of those that CUDA makes visible to this process. It uses the primary context,
// as the CUDA runtime and PyTorch do. Each call selects the GPU for the calling thread and then
// restores the previous selection. ArgumentError that says why if there is no such GPU.
[[nodiscard]] MOETAP_API std::unique_ptr<Device> make_cuda_device(int index);

// Wraps an engine's own stream (its cudaStream_t or CUstream). The result is a view that must not
// outlive the stream. Graph captures that the engine begins on it are detected: a call that cannot
// be part of a graph is then a StateError. So is work on the legacy default stream while another
// stream captures. Freeing memory of `device` waits for streams that `device` made, but not for
// this one. ArgumentError if `device` is not a GPU.
[[nodiscard]] MOETAP_API std::unique_ptr<Stream> wrap_stream(Device& device, void* cuda_stream);

}  // namespace moetap
