// A device: memory, streams, events, graphs. The `cuda` device is a GPU; the `host` device behaves
// like one on a machine that has none.
//
// Ordering is CUDA's: work queued on a stream runs later and in order; different streams run in any
// order unless an event orders them; a graph replays the same kernels with the same addresses. All
// calls may be made from any thread; one stream is used by one thread at a time. A device outlives
// everything that it made.
#pragma once

#include <moetap/kernel.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace moetap {

// A point in a stream's work. record() moves it; a wait waits for the record() that preceded it,
// and is a no-op if there was none.
class Event {
 public:
  virtual ~Event() = default;
  virtual bool done() = 0;         // true if never recorded
  virtual void synchronize() = 0;  // blocks the calling thread
};

// Recorded work, for Stream::launch. Immutable.
class Graph {
 public:
  virtual ~Graph() = default;
};

class Stream {
 public:
  // Of a stream that a device made: when all queued work is done. Never throws.
  virtual ~Stream() = default;

  // Between device memory of this device and more of that, or pinned host memory. Sources and
  // targets must stay valid until it ran. The host device throws ArgumentError for any other
  // memory, outside a buffer, and from host to host memory, where CUDA would block.
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;
  virtual void fill(void* to, std::uint8_t value, std::size_t bytes) = 0;

  // Runs kernel(Block{i, lane, lanes}) for i in [0, blocks), in any order, and every lane. The
  // kernel is copied now. ArgumentError for blocks < 0.
  template <class Kernel>
  void launch(const Kernel& kernel, std::int64_t blocks) {
    launch(KernelCall(kernel, blocks));
  }
  virtual void launch(const KernelCall& call) = 0;
  virtual void launch(const Graph& graph) = 0;

  virtual void record(Event& event) = 0;
  virtual void wait(Event& event) = 0;

  // Calls callback(argument) on a thread of the device's when all earlier work is done. It must not
  // throw (that ends the program) and must not call the device (StateError on the host device).
  virtual void call(void (*callback)(void*), void* argument) = 0;

  virtual bool idle() = 0;
  virtual void synchronize() = 0;  // blocks the calling thread until all queued work is done

  // Copies, fills, launches and callbacks queued between the two are recorded instead of run; a
  // launched graph's work becomes part of the new one. Everything else on this stream (events,
  // idle(), synchronize(), a second capture) is a StateError meanwhile.
  virtual void begin_capture() = 0;
  virtual std::unique_ptr<Graph> end_capture() = 0;
};

class Device;

// Owns memory of a device, or page-locked host memory that its copies can reach. Contents are
// undefined at first. Freed when all work queued on the device is done, which the destructor waits
// for, as cudaFree does. Moved-from is empty; so is what was made with 0 bytes.
class Buffer {
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

class Device {
 public:
  virtual ~Device() = default;

  virtual std::string name() const = 0;  // "host", "cuda:0"

  virtual Buffer allocate(std::size_t bytes) = 0;         // device memory, 256-byte aligned
  virtual Buffer allocate_pinned(std::size_t bytes) = 0;  // host memory, 256-byte aligned

  // Page-locks memory that someone else owns (shared memory) while the result lives. ArgumentError
  // if some of it is locked already.
  virtual Buffer pin(std::span<std::byte> memory) = 0;

  virtual std::unique_ptr<Stream> make_stream() = 0;
  virtual std::unique_ptr<Event> make_event() = 0;

  // Makes a kernel ready, so that its first launch has nothing to wait for:
  // KernelEntryOf<K>::entry. StateError on a GPU if it was compiled for hosts only.
  virtual void load(const KernelEntry& kernel) = 0;
};

// "auto" (a GPU if there is one, else host), "host", "cuda", "cuda:N". Asking for a device that is
// not there is an ArgumentError that says why.
std::unique_ptr<Device> open_device(std::string_view name = "auto");

}  // namespace moetap
