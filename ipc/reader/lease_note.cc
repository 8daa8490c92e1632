#include "ipc/reader/lease_note.h"

#include <moetap/lease.h>

#include <algorithm>
#include <cstring>

#include "lib/internal/injection.h"

namespace moetap {
namespace {

using Holder = std::array<char, LeaseNote::kHolderBytes>;

Holder shortened(std::string_view text) {
  constexpr std::string_view kMore = "...";
  Holder holder{};
  const std::size_t size = std::min(text.size(), holder.size());
  std::copy_n(text.begin(), size, holder.begin());
  if (text.size() > holder.size()) std::ranges::copy(kMore, holder.end() - kMore.size());
  return holder;
}

// What any process may have written there, for a log.
std::string printable(const Holder& holder) {
  std::string text(holder.begin(), std::ranges::find(holder, '\0'));
  std::ranges::replace_if(
      text, [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

}  // namespace

void LeaseNote::write(std::size_t leases, std::string_view holder,
                      Clock::time_point since) noexcept {
  const Holder text = shortened(holder);
  // Odd also after a writer that died in the middle.
  const std::uint64_t writing = version_.load(std::memory_order_relaxed) | 1;
  version_.store(writing, std::memory_order_relaxed);
  MOETAP_POINT("lend noting");
  leases_.store(leases, std::memory_order_release);
  since_.store(std::chrono::nanoseconds(since.time_since_epoch()).count(),
               std::memory_order_release);
  for (std::size_t i = 0; i < holder_.size(); ++i) {
    std::uint64_t word;
    std::memcpy(&word, text.data() + i * sizeof word, sizeof word);
    holder_[i].store(word, std::memory_order_release);
  }
  version_.store(writing + 1, std::memory_order_release);
}

std::string LeaseNote::describe() const {
  constexpr int kTries = 1000;  // a write takes some tens of nanoseconds
  for (int i = 0; i < kTries; ++i) {
    const std::uint64_t before = version_.load(std::memory_order_acquire);
    const std::uint64_t leases = leases_.load(std::memory_order_acquire);
    const std::int64_t since = since_.load(std::memory_order_acquire);
    Holder text;
    for (std::size_t word = 0; word < holder_.size(); ++word) {
      const std::uint64_t bytes = holder_[word].load(std::memory_order_acquire);
      std::memcpy(text.data() + word * sizeof bytes, &bytes, sizeof bytes);
    }
    if (before % 2 != 0 || version_.load(std::memory_order_relaxed) != before) continue;
    if (leases == 0) return "";
    const std::chrono::nanoseconds now = Clock::now().time_since_epoch();
    const std::chrono::nanoseconds start(std::clamp<std::int64_t>(since, 0, now.count()));
    return describe_leases(leases, printable(text), now - start);
  }
  return "leases are out, by a note that is never finished";
}

}  // namespace moetap
