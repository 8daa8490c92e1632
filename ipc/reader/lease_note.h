// How a reader that lends rows tells the waiting worker who has them and since when.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "ipc/ring/shared_note.h"

namespace moetap {

class LeaseNote {
 public:
  using Clock = std::chrono::steady_clock;  // of the machine since its start: all processes agree

  // The first characters of a longer holder name.
  static constexpr std::size_t kHolderBytes = 96;

  // With 0 leases `holder` and `since` are ignored.
  void write(std::size_t leases, std::string_view holder, Clock::time_point since) noexcept;

  // "2 leases are out, the oldest is held by request 7 for 1250 ms", or "" if none is. Whatever the
  // memory contains, this terminates, and the text is printable and short.
  std::string describe() const;

 private:
  // The number of leases, since when in nanoseconds, and the holder, zero-padded.
  static constexpr std::size_t kHolder = 2;
  using Note = SharedNote<kHolder + kHolderBytes / sizeof(std::uint64_t)>;
  Note note_;
};

}  // namespace moetap
