// The memory that a host device's work may touch.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>

namespace moetap::host {

class Memory {
 public:
  enum class Kind {
    device,
    host
  };  // of which a GPU can copy into each other, but not host to host

  // Filled with kPoison, so that nobody comes to rely on zeros. SystemError if there is not enough.
  static constexpr std::byte kPoison{0xA5};
  void* allocate(std::size_t bytes, std::size_t alignment, Kind kind);
  void release(void* data);

  // Host memory that someone else owns. ArgumentError if any of it is known already.
  void add(void* data, std::size_t bytes);
  void remove(void* data);

  // ArgumentError unless [data, data + bytes) lies within one piece: a copy of other memory would
  // be synchronous or fail on a GPU. Returns what it is; no bytes are device memory.
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
