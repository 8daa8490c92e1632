// What the emulated GPU does not have or takes too lightly, for `./dev emulate`, which links this
// file with it. Weak: an emulator that has a call keeps its own.
#include <cuda_runtime_api.h>

// Only called to load a kernel, which the emulator does at a program's start.
extern "C" __attribute__((weak)) cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes,
                                                                   const void*) {
  *attributes = {};
  return cudaSuccess;
}

extern "C" __attribute__((weak)) cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

// The emulator's, which is compiled under this name.
extern "C" cudaError_t emulated_capture_info(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                             unsigned long long* id, cudaGraph_t* graph,
                                             const cudaGraphNode_t** nodes,
                                             const cudaGraphEdgeData** edges, size_t* count);

// CUDA refuses to tell dependencies without their edges if one of these has data. The emulator has
// no such edges, so this refuses always.
extern "C" cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream,
                                                cudaStreamCaptureStatus* status,
                                                unsigned long long* id, cudaGraph_t* graph,
                                                const cudaGraphNode_t** nodes,
                                                const cudaGraphEdgeData** edges, size_t* count) {
  if (nodes != nullptr && edges == nullptr) return cudaErrorLossyQuery;
  return emulated_capture_info(stream, status, id, graph, nodes, edges, count);
}
