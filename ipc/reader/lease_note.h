// What a reader that lends rows tells the worker that it keeps waiting: who has them, since when.
// The order of its loads and stores is checked in test/model (note).
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace moetap {

// In shared memory, in plain words, read and written as one (a sequence lock: whoever reads while
// it is written looks again). One writer at a time; it may die in the middle.
class LeaseNote {
 public:
  using Clock = std::chrono::steady_clock;  // of the machine since its start: all processes agree

  // Of a longer holder the first characters.
  static constexpr std::size_t kHolderBytes = 96;

  // No leases: `holder` and `since` do not matter.
  void write(std::size_t leases, std::string_view holder, Clock::time_point since) noexcept;

  // "2 leases are out, the oldest is held by request 7 for 1250 ms", or "" if none is. Whatever is
  // in the memory, this ends, and the text is printable and short.
  std::string describe() const;

 private:
  // Every access is one of release or acquire, so that a reader who sees a word of a write also
  // sees the version that the write began with.
  std::atomic<std::uint64_t> version_{0};  // odd: being written
  std::atomic<std::uint64_t> leases_{0};
  std::atomic<std::int64_t> since_{0};                                 // nanoseconds
  std::array<std::atomic<std::uint64_t>, kHolderBytes / 8> holder_{};  // zeros behind the text
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace moetap
