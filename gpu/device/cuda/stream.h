// Streams, events and graphs of a GPU; each call maps to one CUDA call.
#pragma once

#include <moetap/device.h>

#include <memory>
#include <mutex>
#include <vector>

#include "gpu/device/cuda/call.h"
#include "lib/internal/export.h"

namespace moetap::cuda {

// StateError for a kernel that was compiled for hosts only.
void require_cuda(const KernelEntry& kernel);

class CudaEvent final : public Event {
 public:
  explicit CudaEvent(int device);
  bool done() override;
  void synchronize() override;

  int device() const { return device_; }
  cudaEvent_t get() const { return event_.get(); }

 private:
  int device_;
  OwnedEvent event_;
};

class CudaGraph final : public Graph {
 public:
  CudaGraph(int device, OwnedGraph graph);

  int device() const { return device_; }
  cudaGraph_t get() const { return graph_.get(); }
  cudaGraphExec_t executable() const { return executable_.get(); }

 private:
  int device_;
  OwnedGraph graph_;  // kept, so that it can become part of another graph
  OwnedGraphExec executable_;
};

// A view of a stream that is owned elsewhere.
class CudaStream : public Stream {
 public:
  CudaStream(int device, cudaStream_t stream) : device_(device), stream_(stream) {}
  ~CudaStream() override { abandon_recording(); }

  void copy(void* to, const void* from, std::size_t bytes) final;
  void fill(void* to, std::uint8_t value, std::size_t bytes) final;
  using Stream::launch;
  void launch(const KernelCall& call) final;
  void launch(const Graph& graph) final;
  void record(Event& event) final;
  void wait(Event& event) final;
  void call(void (*callback)(void*), void* argument) final;
  bool idle() final;
  void synchronize() final;
  void begin_capture() final;
  std::unique_ptr<Graph> end_capture() final;

  cudaStream_t get() const { return stream_; }

 protected:
  void abandon_recording();

 private:
  bool capturing() const;
  void require_takes_work() const;
  void refuse_in_capture(const char* what) const;
  void embed(cudaGraph_t graph);
  CudaEvent& own(Event& event) const;

  int device_;
  cudaStream_t stream_;
  bool recording_ = false;  // set by begin_capture(); a wrapped stream may capture without it
};

// CUDA's handle of a stream. ArgumentError that begins with `what` if it is no GPU's.
MOETAP_INTERNAL_API cudaStream_t handle_of(Stream& stream, const char* what);

// The living streams that a device made.
class StreamList {
 public:
  void add(cudaStream_t stream);
  void remove(cudaStream_t stream);
  void synchronize() const;

 private:
  mutable std::mutex mutex_;
  std::vector<cudaStream_t> streams_;
};

// A non-blocking stream: it and the legacy default stream do not wait for each other. Its
// destructor waits until its work is done.
class OwnCudaStream final : public CudaStream {
 public:
  OwnCudaStream(int device, StreamList& streams, OwnedStream stream);
  ~OwnCudaStream() override;

 private:
  int device_;
  StreamList& streams_;
  OwnedStream stream_;
};

}  // namespace moetap::cuda
