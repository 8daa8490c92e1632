// A neighbour that writes what it likes to a segment.
#pragma once

#include <cstddef>
#include <span>

#include "test/fuzz/target.h"

namespace moetap::fuzz {

// [offset 2 bytes][length 1 byte][bytes] over the memory; offsets wrap within `span` bytes.
inline void scribble(std::span<std::byte> memory, Input& input) {
  const std::size_t offset = input.take<std::uint16_t>() % memory.size();
  const auto bytes = input.take_bytes(input.take<std::uint8_t>());
  const std::size_t n = std::min(bytes.size(), memory.size() - offset);
  if (n > 0) std::memcpy(memory.data() + offset, bytes.data(), n);
}

}  // namespace moetap::fuzz
