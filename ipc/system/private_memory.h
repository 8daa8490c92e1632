// Zero-filled memory of this process alone.
#pragma once

#include <cstddef>
#include <span>

namespace moetap {

// Straight from the kernel, in huge pages where it has them: pages are zeroed when first touched,
// so that a buffer of a million slots is there at once, and scattered rows miss the TLB rarely.
class PrivateMemory {
 public:
  // SystemError if the kernel refuses, with the bytes.
  explicit PrivateMemory(std::size_t bytes);
  ~PrivateMemory();
  PrivateMemory(const PrivateMemory&) = delete;
  PrivateMemory& operator=(const PrivateMemory&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

}  // namespace moetap
