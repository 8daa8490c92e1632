#include "gpu/device/cuda/stream.h"

#include <moetap/error.h>

#include <fmt/format.h>

#include <cstdio>
#include <limits>
#include <utility>

namespace moetap::cuda {

void require_cuda(const KernelEntry& kernel) {
  if (kernel.cuda != nullptr) return;
  throw StateError(fmt::format(
      "launch of {} on a GPU, but it was compiled for hosts only: name it in a .cu file, see "
      "<moetap/cuda_kernel.h>",
      kernel.name));
}

CudaEvent::CudaEvent(int device) : device_(device), event_(device) {
  const Scope scope(device_);
  MOETAP_CUDA(cudaEventCreateWithFlags, event_.out(), cudaEventDisableTiming);
}

bool CudaEvent::done() {
  const Scope scope(device_);
  const cudaError_t state = cudaEventQuery(event_.get());
  if (state == cudaErrorNotReady) return false;
  check(state, "cudaEventQuery");
  return true;
}

void CudaEvent::synchronize() {
  const Scope scope(device_);
  MOETAP_CUDA(cudaEventSynchronize, event_.get());
}

CudaGraph::CudaGraph(int device, OwnedGraph graph)
    : device_(device), graph_(std::move(graph)), executable_(device) {
  const Scope scope(device_);
  MOETAP_CUDA(cudaGraphInstantiate, executable_.out(), graph_.get(), 0);
}

void CudaStream::copy(void* to, const void* from, std::size_t bytes) {
  const Scope scope(device_);
  require_takes_work();
  MOETAP_CUDA(cudaMemcpyAsync, to, from, bytes, cudaMemcpyDefault, stream_);
}

void CudaStream::fill(void* to, std::uint8_t value, std::size_t bytes) {
  const Scope scope(device_);
  require_takes_work();
  MOETAP_CUDA(cudaMemsetAsync, to, value, bytes, stream_);
}

void CudaStream::launch(const KernelCall& call) {
  constexpr std::int64_t kMaxBlocks = std::numeric_limits<std::int32_t>::max();
  if (call.blocks() < 0 || call.blocks() > kMaxBlocks) {
    throw ArgumentError(fmt::format("launch of {} with {} blocks: need 0 to {}", call.entry().name,
                                    call.blocks(), kMaxBlocks));
  }
  require_cuda(call.entry());
  if (call.blocks() == 0) return;  // an error in CUDA
  const Scope scope(device_);
  require_takes_work();
  call.entry().cuda(call.arguments(), call.blocks(), stream_);
}

void CudaStream::launch(const Graph& graph) {
  const auto* own_graph = dynamic_cast<const CudaGraph*>(&graph);
  if (own_graph == nullptr || own_graph->device() != device_) {
    throw ArgumentError("launch of a graph that another device recorded: record it on this one");
  }
  const Scope scope(device_);
  require_takes_work();
  if (capturing()) return embed(own_graph->get());
  MOETAP_CUDA(cudaGraphLaunch, own_graph->executable(), stream_);
}

// Adds the next node to the graph that this stream records. It waits for all of what it depends on.
// Edges may carry less than that: a kernel's programmatic ones, which allow a kernel after it to
// start early. Only kernels can have such edges, and CUDA fails (cudaErrorLossyQuery) unless they
// are asked for.
void CudaStream::embed(cudaGraph_t graph) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaGraph_t into = nullptr;
  const cudaGraphNode_t* after = nullptr;
  const cudaGraphEdgeData* edges = nullptr;
  std::size_t count = 0;
  MOETAP_CUDA(cudaStreamGetCaptureInfo, stream_, &status, nullptr, &into, &after, &edges, &count);
  cudaGraphNode_t node = nullptr;
  MOETAP_CUDA(cudaGraphAddChildGraphNode, &node, into, after, count, graph);
  MOETAP_CUDA(cudaStreamUpdateCaptureDependencies, stream_, &node, nullptr, 1,
              cudaStreamSetCaptureDependencies);
}

void CudaStream::record(Event& event) {
  refuse_in_capture("record()");
  const CudaEvent& own_event = own(event);
  const Scope scope(device_);
  MOETAP_CUDA(cudaEventRecord, own_event.get(), stream_);
}

void CudaStream::wait(Event& event) {
  refuse_in_capture("wait()");
  const CudaEvent& own_event = own(event);
  const Scope scope(device_);
  MOETAP_CUDA(cudaStreamWaitEvent, stream_, own_event.get(), 0);
}

void CudaStream::call(void (*callback)(void*), void* argument) {
  const Scope scope(device_);
  require_takes_work();
  MOETAP_CUDA(cudaLaunchHostFunc, stream_, callback, argument);
}

bool CudaStream::idle() {
  refuse_in_capture("idle()");
  const Scope scope(device_);
  const cudaError_t state = cudaStreamQuery(stream_);
  if (state == cudaErrorNotReady) return false;
  check(state, "cudaStreamQuery");
  return true;
}

void CudaStream::synchronize() {
  refuse_in_capture("synchronize()");
  const Scope scope(device_);
  MOETAP_CUDA(cudaStreamSynchronize, stream_);
}

void CudaStream::begin_capture() {
  refuse_in_capture("begin_capture()");
  const Scope scope(device_);
  // In the other modes only this thread could end it. Our calls are allowed in any: see Scope.
  MOETAP_CUDA(cudaStreamBeginCapture, stream_, cudaStreamCaptureModeRelaxed);
  recording_ = true;
}

std::unique_ptr<Graph> CudaStream::end_capture() {
  if (!std::exchange(recording_, false)) {
    throw StateError("end_capture() without begin_capture(): begin one on this stream first");
  }
  const Scope scope(device_);
  OwnedGraph graph(device_);
  MOETAP_CUDA(cudaStreamEndCapture, stream_, graph.out());
  return std::make_unique<CudaGraph>(device_, std::move(graph));
}

void CudaStream::abandon_recording() {
  if (!std::exchange(recording_, false)) return;
  const Scope scope(device_, std::nothrow);
  OwnedGraph graph(device_);
  cudaStreamEndCapture(stream_, graph.out());
}

bool CudaStream::capturing() const {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t error = cudaStreamIsCapturing(stream_, &status);
  if (error == cudaErrorStreamCaptureImplicit) {
    (void)cudaGetLastError();
    throw StateError(
        "work on the legacy default stream while another stream records a graph, which that would "
        "spoil: wait for the end of the recording, or use a stream that was made with "
        "cudaStreamNonBlocking");
  }
  check(error, "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

// The legacy default stream waits for all blocking streams, including one that records. Querying
// its state is harmless, but queueing work on it invalidates the recording:
// https://docs.nvidia.com/cuda/cuda-c-programming-guide/#prohibited-and-unhandled-operations
void CudaStream::require_takes_work() const {
  if (stream_ == nullptr || stream_ == cudaStreamLegacy) (void)capturing();
}

void CudaStream::refuse_in_capture(const char* what) const {
  const Scope scope(device_);
  if (!capturing()) return;
  throw StateError(fmt::format(
      "{} on a stream that records a graph: end_capture() first, or use another stream", what));
}

CudaEvent& CudaStream::own(Event& event) const {
  auto* own_event = dynamic_cast<CudaEvent*>(&event);
  if (own_event == nullptr || own_event->device() != device_) {
    throw ArgumentError("an event of another device: make it with this one's make_event()");
  }
  return *own_event;
}

cudaStream_t handle_of(Stream& stream, const char* what) {
  const auto* own = dynamic_cast<const CudaStream*>(&stream);
  if (own == nullptr) throw ArgumentError(fmt::format("{} on a stream that is no GPU's", what));
  return own->get();
}

void StreamList::add(cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  streams_.push_back(stream);
}

void StreamList::remove(cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  std::erase(streams_, stream);
}

// A recording stream has nothing to wait for, and querying it would invalidate its graph.
void StreamList::synchronize() const {
  const std::lock_guard lock(mutex_);
  for (const cudaStream_t stream : streams_) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(stream, &status) != cudaSuccess) continue;
    if (status == cudaStreamCaptureStatusNone) cudaStreamSynchronize(stream);
  }
}

OwnCudaStream::OwnCudaStream(int device, StreamList& streams, OwnedStream stream)
    : CudaStream(device, stream.get()),
      device_(device),
      streams_(streams),
      stream_(std::move(stream)) {
  streams_.add(get());
}

OwnCudaStream::~OwnCudaStream() {
  abandon_recording();
  streams_.remove(get());
  const Scope scope(device_, std::nothrow);
  const cudaError_t error = cudaStreamSynchronize(get());
  if (error == cudaSuccess) return;
  // A broken context: nothing runs any more, and a destructor cannot report it.
  std::fprintf(stderr, "moetap: a stream ended with work undone: %s: %s\n", cudaGetErrorName(error),
               cudaGetErrorString(error));
}

}  // namespace moetap::cuda
