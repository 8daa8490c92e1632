// A few words in shared memory that are written and read atomically as one value.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace moetap {

// A sequence lock: a read during a write is repeated. One writer at a time, which may die during a
// write. The order of its loads and stores is checked in test/model (note).
template <std::size_t kWords>
class SharedNote {
 public:
  using Words = std::array<std::uint64_t, kWords>;

  // Calls begun() when the note is marked as being written, before any word is stored.
  template <class Begun>
  void write(const Words& words, Begun&& begun) noexcept {
    // Also odd after a writer that died during a write.
    const std::uint64_t writing = version_.load(std::memory_order_relaxed) | 1;
    version_.store(writing, std::memory_order_relaxed);
    begun();
    for (std::size_t i = 0; i < kWords; ++i) words_[i].store(words[i], std::memory_order_release);
    version_.store(writing + 1, std::memory_order_release);
  }

  // Nothing while it is being written. Terminates whatever the memory contains.
  std::optional<Words> read() const {
    constexpr int kTries = 1000;  // a write takes tens of nanoseconds
    for (int tries = 0; tries < kTries; ++tries) {
      const std::uint64_t before = version_.load(std::memory_order_acquire);
      Words words;
      for (std::size_t i = 0; i < kWords; ++i) words[i] = words_[i].load(std::memory_order_acquire);
      if (before % 2 == 0 && version_.load(std::memory_order_relaxed) == before) return words;
    }
    return std::nullopt;
  }

 private:
  // Every access is a release or an acquire. So a reader that sees a word of a write also sees the
  // version with which the write began.
  std::atomic<std::uint64_t> version_{0};  // odd: being written
  std::array<std::atomic<std::uint64_t>, kWords> words_{};
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace moetap
