// What a fuzz target is made of: libFuzzer calls LLVMFuzzerTestOneInput with bytes of its making;
// without it (replay.cc) the same function gets the files of the corpus.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <span>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace moetap::fuzz {

// Reads values off the front of an input; zeros after its end.
class Input {
 public:
  explicit Input(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  bool empty() const { return bytes_.empty(); }

  template <class T>
  T take() {
    T value{};
    const std::size_t n = std::min(sizeof value, bytes_.size());
    if (n > 0) std::memcpy(&value, bytes_.data(), n);
    bytes_ = bytes_.subspan(n);
    return value;
  }

  std::span<const std::uint8_t> take_bytes(std::size_t most) {
    const auto taken = bytes_.first(std::min(most, bytes_.size()));
    bytes_ = bytes_.subspan(taken.size());
    return taken;
  }

 private:
  std::span<const std::uint8_t> bytes_;
};

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// What must hold whatever the input is.
inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: %s\n", what);
  std::abort();
}

// Runs body(); input that is refused is refused by an exception, with something to say.
template <class Body>
void may_refuse(Body&& body) {
  try {
    body();
  } catch (const std::exception& error) {
    require(*error.what() != '\0', "an exception without a message");
  }
}

}  // namespace moetap::fuzz
