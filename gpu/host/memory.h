// The memory that a host device's work may touch.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>

namespace moetap::host {

class Memory {
 public:
  // Filled with kPoison, so that nobody comes to rely on zeros. SystemError if there is not enough.
  static constexpr std::byte kPoison{0xA5};
  void* allocate(std::size_t bytes, std::size_t alignment);
  void release(void* data);

  // Memory that someone else owns. ArgumentError if any of it is known already.
  void add(void* data, std::size_t bytes);
  void remove(void* data);

  // ArgumentError unless [data, data + bytes) lies within one piece: a copy of other memory would
  // be synchronous or fail on a GPU.
  void require(const char* what, const void* data, std::size_t bytes) const;

 private:
  struct Piece {
    std::size_t bytes;
    std::size_t alignment;
  };
  mutable std::mutex mutex_;
  std::map<const std::byte*, Piece> pieces_;
};

}  // namespace moetap::host
