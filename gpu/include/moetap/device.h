// A device: memory, streams, events, graphs. A `cuda` device is a GPU; the `host` device behaves
// like one on a machine without a GPU. The `inline` device is for engines that compute on the CPU:
// all work runs at once, in the calling thread.
//
// Ordering is that of CUDA. Work queued on a stream runs later, in order. Different streams run in
// any order unless an event orders them. A graph replays the same kernels with the same addresses.
// All calls may be made from any thread, but a stream is used by one thread at a time. A device
// must outlive everything that it made.
#pragma once

#include <moetap/export.h>
#include <moetap/kernel.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace moetap {

// A point in a stream's work, set by record(). A wait waits for the latest record() before it, and
// is a no-op if there was none.
class MOETAP_API Event {
 public:
  virtual ~Event() = default;
  virtual bool done() = 0;         // true if never recorded
  virtual void synchronize() = 0;  // blocks the calling thread
};

// Recorded work, for Stream::launch. Immutable.
class MOETAP_API Graph {
 public:
  virtual ~Graph() = default;
};

class MOETAP_API Stream {
 public:
  // For a stream that a device made, waits until all queued work is done. Never throws.
  virtual ~Stream() = default;

  // Copies within this device's memory, or between it and pinned host memory. Source and target
  // must stay valid until the copy has run. The host and inline devices throw ArgumentError
  // for any other memory, for ranges outside a buffer, and for host-to-host copies, where CUDA
  // would block.
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;
  virtual void fill(void* to, std::uint8_t value, std::size_t bytes) = 0;

  // Runs kernel(Block{i, lane, lanes}) for each i in [0, blocks) and each lane, in any order. The
  // kernel is copied at the call. ArgumentError for blocks < 0.
  template <class Kernel>
  void launch(const Kernel& kernel, std::int64_t blocks) {
    launch(KernelCall(kernel, blocks));
  }
  virtual void launch(const KernelCall& call) = 0;
  virtual void launch(const Graph& graph) = 0;

  virtual void record(Event& event) = 0;
  virtual void wait(Event& event) = 0;

  // Calls callback(argument) on one of the device's threads (inline: the calling one) when all
  // earlier work is done. The callback must not throw (this would end the program) and must not
  // call the device (StateError on the host and inline devices).
  virtual void call(void (*callback)(void*), void* argument) = 0;

  virtual bool idle() = 0;
  virtual void synchronize() = 0;  // blocks the calling thread until all queued work is done

  // Copies, fills, launches and callbacks queued between the two calls are recorded instead of run.
  // The work of a launched graph becomes part of the new graph. Any other call on this stream
  // (events, idle(), synchronize(), a second capture) is a StateError meanwhile.
  virtual void begin_capture() = 0;
  [[nodiscard]] virtual std::unique_ptr<Graph> end_capture() = 0;
};

class Device;

// Owns device memory, or page-locked host memory that the device's copies can use. The initial
// contents are undefined. Like cudaFree, the destructor waits until all work queued on the device
// is done. A buffer that was moved from, or made with 0 bytes, is empty.
class MOETAP_API Buffer {
 public:
  Buffer() = default;
  Buffer(Device& device, void* data, std::size_t bytes,
         void (*release)(Device&, void*, std::size_t));
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  std::size_t size() const { return bytes_; }
  template <class T>
  T* as(std::size_t byte_offset = 0) const {
    return reinterpret_cast<T*>(data() + byte_offset);
  }

 private:
  Device* device_ = nullptr;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  void (*release_)(Device&, void*, std::size_t) = nullptr;
};

class MOETAP_API Device {
 public:
  virtual ~Device() = default;

  virtual std::string name() const = 0;  // "host", "inline", "cuda:0"

  virtual Buffer allocate(std::size_t bytes) = 0;         // device memory, 256-byte aligned
  virtual Buffer allocate_pinned(std::size_t bytes) = 0;  // host memory, 256-byte aligned

  // Page-locks memory with another owner (e.g. shared memory) during the result's lifetime.
  // ArgumentError if any of it is already locked.
  [[nodiscard]] virtual Buffer pin(std::span<std::byte> memory) = 0;

  [[nodiscard]] virtual std::unique_ptr<Stream> make_stream() = 0;
  [[nodiscard]] virtual std::unique_ptr<Event> make_event() = 0;

  // Loads a kernel, so that its first launch need not wait for this. Pass KernelEntryOf<K>::entry.
  // StateError on a GPU if the kernel was compiled for hosts only.
  virtual void load(const KernelEntry& kernel) = 0;
};

// Opens a device: "auto" (a GPU if there is one, otherwise host), "host", "inline", "cuda" or
// "cuda:N". ArgumentError that says why if there is no such device.
[[nodiscard]] MOETAP_API std::unique_ptr<Device> open_device(std::string_view name = "auto");

}  // namespace moetap
