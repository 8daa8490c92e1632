#include "ipc/reader/lease_note.h"

#include <moetap/lease.h>

#include <algorithm>
#include <array>
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

// Text that any process may have written, made safe for a log.
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
  Note::Words words;
  words[0] = leases;
  words[1] = static_cast<std::uint64_t>(std::chrono::nanoseconds(since.time_since_epoch()).count());
  std::memcpy(&words[kHolder], text.data(), text.size());
  note_.write(words, [] { MOETAP_POINT("lend noting"); });
}

std::string LeaseNote::describe() const {
  const auto words = note_.read();
  if (!words) return "leases are out, by a note that is never finished";
  const std::uint64_t leases = (*words)[0];
  if (leases == 0) return "";
  Holder text;
  std::memcpy(text.data(), &(*words)[kHolder], text.size());
  const std::chrono::nanoseconds now = Clock::now().time_since_epoch();
  const auto since = static_cast<std::int64_t>((*words)[1]);
  const std::chrono::nanoseconds start(std::clamp<std::int64_t>(since, 0, now.count()));
  return describe_leases(leases, printable(text), now - start);
}

}  // namespace moetap
