// Memory and events of a host device, for either executor.
#pragma once

#include <unistd.h>

#include <memory>
#include <span>
#include <string>

#include "gpu/device/host/stream.h"

namespace moetap::host {

// `Interface` is Device or a class derived from it.
template <class Interface>
class HostDevice : public Interface, public Executor {
 public:
  Buffer allocate(std::size_t bytes) final {
    return allocate_aligned(bytes, 256, Memory::Kind::device);
  }

  Buffer allocate_pinned(std::size_t bytes) final {
    return allocate_aligned(bytes, static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)),
                            Memory::Kind::host);
  }

  Buffer pin(std::span<std::byte> bytes) final {
    if (bytes.empty()) return {};
    memory().add(bytes.data(), bytes.size());
    return {*this, bytes.data(), bytes.size(), [](Device& device, void* data, std::size_t) {
              self(device).block_until_all_done();
              self(device).memory().remove(data);
            }};
  }

  std::unique_ptr<Event> make_event() final { return std::make_unique<HostEvent>(*this); }

  void load(const KernelEntry&) final {}

 private:
  Buffer allocate_aligned(std::size_t bytes, std::size_t alignment, Memory::Kind kind) {
    if (bytes == 0) return {};
    return {*this, memory().allocate(bytes, alignment, kind), bytes,
            [](Device& device, void* data, std::size_t) {
              self(device).block_until_all_done();
              self(device).memory().release(data);
            }};
  }

  static HostDevice& self(Device& device) { return static_cast<HostDevice&>(device); }
};

}  // namespace moetap::host
