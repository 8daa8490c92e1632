// Devices, their streams and their memory, as Python has them.
#pragma once

#include <moetap/cuda_device.h>
#include <moetap/device.h>

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "python/src/guarded.h"

namespace moetap::python {

// Shares ownership of an object that a forked child must not destroy: its threads are missing
// there.
template <class T>
std::shared_ptr<T> owned_here(std::unique_ptr<T> object) {
  return std::shared_ptr<T>(object.release(), [made_in = forks()](T* of) {
    if (made_in == forks()) delete of;
  });
}

// A device, and the memory that Python has of it.
class PyDevice : public std::enable_shared_from_this<PyDevice> {
 public:
  explicit PyDevice(std::unique_ptr<Device> device)
      : device_(owned_here(std::move(device))), name_(device_->name()) {}

  Device& get() const;
  const std::string& name() const { return name_; }
  // Whether its memory is the host's.
  bool is_host() const { return name_ == "host" || name_ == "inline"; }
  // N of cuda:N.
  int index() const;

  std::shared_ptr<Buffer> allocate(std::size_t bytes);
  // The memory of allocate() that has all of these bytes, or null.
  std::shared_ptr<Buffer> owner_of(const void* data, std::size_t bytes) const;

 private:
  std::shared_ptr<Device> device_;
  std::string name_;
  std::uint64_t made_in_ = forks();
  std::map<const std::byte*, std::weak_ptr<Buffer>> pieces_;
};

// A stream of a device, or an engine's own one.
class PyStream : public Guarded<Stream> {
 public:
  PyStream(std::shared_ptr<PyDevice> device, std::unique_ptr<Stream> stream, std::string what,
           std::int64_t handle = -1)
      : Guarded(std::move(stream), std::move(what)), device_(std::move(device)), handle_(handle) {}

  ~PyStream() { destroy(); }

  const std::shared_ptr<PyDevice>& device() const { return device_; }
  // An engine's cudaStream_t; -1 for a stream that the device made.
  std::int64_t handle() const { return handle_; }

  bool recording() const { return recording_; }
  // Memory that the recorded graph reads each time that it is launched.
  void keep(std::shared_ptr<Buffer> buffer) { kept_.push_back(std::move(buffer)); }
  // Something that must not be closed when the graph is launched.
  void need(std::shared_ptr<const bool> open) { needed_.push_back(std::move(open)); }
  void start_recording() {
    kept_.clear();
    needed_.clear();
    recording_ = true;
  }
  std::vector<std::shared_ptr<Buffer>> end_recording() {
    recording_ = false;
    return std::exchange(kept_, {});
  }
  std::vector<std::shared_ptr<const bool>> needed() { return std::exchange(needed_, {}); }

 private:
  std::shared_ptr<PyDevice> device_;  // outlives the stream
  std::int64_t handle_;
  bool recording_ = false;
  std::vector<std::shared_ptr<Buffer>> kept_;
  std::vector<std::shared_ptr<const bool>> needed_;
};

struct PyGraph {
  std::shared_ptr<PyDevice> device;
  std::shared_ptr<Graph> graph;
  std::vector<std::shared_ptr<Buffer>> kept;
  std::vector<std::shared_ptr<const bool>> needed;  // false: closed
};

// An array in device memory.
struct DeviceArray {
  std::shared_ptr<PyDevice> device;
  std::shared_ptr<void> owner;  // of the memory
  void* data = nullptr;
  std::vector<std::int64_t> shape;
  std::string dtype;  // NumPy's name
};

// A device, or the one of a name; null is "auto".
std::shared_ptr<PyDevice> device_of(nb::handle given);

// The stream that `given` names: a Stream, a number, an object with __cuda_stream__ or cuda_stream.
std::shared_ptr<PyStream> stream_of(const std::shared_ptr<PyDevice>& device, nb::handle given);
// PyTorch's current stream of a GPU, if PyTorch is loaded; else ArgumentError that says what to
// give.
std::shared_ptr<PyStream> current_stream(const std::shared_ptr<PyDevice>& device);

}  // namespace moetap::python
