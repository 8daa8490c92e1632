// Zero-filled memory of this process only.
#pragma once

#include <cstddef>
#include <span>

namespace moetap {

// Mapped from the kernel, in huge pages where available. Pages are zeroed at first touch, so a
// buffer of a million slots is available at once, and scattered rows rarely miss the TLB.
class PrivateMemory {
 public:
  // SystemError with the bytes if the kernel refuses.
  explicit PrivateMemory(std::size_t bytes);
  ~PrivateMemory();
  PrivateMemory(const PrivateMemory&) = delete;
  PrivateMemory& operator=(const PrivateMemory&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

}  // namespace moetap
