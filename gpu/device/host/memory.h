// The memory that a host device's work may touch.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>

namespace moetap::host {

class Memory {
 public:
  enum class Kind { device, host };  // a GPU can copy between these, except host to host

  // Filled with kPoison, so that no code relies on zeros. SystemError if there is not enough
  // memory.
  static constexpr std::byte kPoison{0xA5};
  void* allocate(std::size_t bytes, std::size_t alignment, Kind kind);
  void release(void* data);

  // Host memory with another owner. ArgumentError if any of it is already registered.
  void add(void* data, std::size_t bytes);
  void remove(void* data);

  // ArgumentError unless [data, data + bytes) is within one allocation: a copy of other memory
  // would be synchronous or fail on a GPU. Returns the kind of memory; 0 bytes count as device
  // memory.
  Kind require(const char* what, const void* data, std::size_t bytes) const;

 private:
  struct Piece {
    std::size_t bytes;
    std::size_t alignment;
    Kind kind;
  };
  mutable std::mutex mutex_;
  std::map<const std::byte*, Piece> pieces_;
};

}  // namespace moetap::host
