// What a reader that lends rows tells the worker that it keeps waiting: who has them, since when.
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

  // Of a longer holder the first characters.
  static constexpr std::size_t kHolderBytes = 96;

  // No leases: `holder` and `since` do not matter.
  void write(std::size_t leases, std::string_view holder, Clock::time_point since) noexcept;

  // "2 leases are out, the oldest is held by request 7 for 1250 ms", or "" if none is. Whatever is
  // in the memory, this ends, and the text is printable and short.
  std::string describe() const;

 private:
  // How many there are, since when in nanoseconds, and the holder with zeros after the text.
  static constexpr std::size_t kHolder = 2;
  using Note = SharedNote<kHolder + kHolderBytes / sizeof(std::uint64_t)>;
  Note note_;
};

}  // namespace moetap
