#include "tool/slot_list.h"

#include <moetap/error.h>

#include <fmt/format.h>

#include <numeric>

#include "ipc/internal/slot_lists.h"
#include "lib/internal/number_format.h"
#include "lib/internal/numbers.h"

namespace moetap::tool {
namespace {

Slot parse_slot(std::string_view text, std::int64_t num_slots) {
  const auto slot = detail::parse_number<std::int64_t>(text);
  if (!slot || text[0] == '-') {
    throw ArgumentError(
        fmt::format("'{}' is no slot: give slots and ranges, as in 0-15,40,64-79, or all", text));
  }
  if (*slot >= num_slots) {
    throw RangeError(fmt::format("slot {} is outside the buffer's {} slots", *slot, num_slots));
  }
  return Slot(*slot);
}

}  // namespace

std::vector<Slot> parse_slots(std::string_view text, std::int64_t num_slots) {
  std::vector<Slot> slots;
  const auto append = [&](Slot first, Slot last) {
    const std::size_t from = slots.size();
    slots.resize(from + static_cast<std::size_t>(last - first + 1));
    std::iota(slots.begin() + static_cast<std::ptrdiff_t>(from), slots.end(), first);
  };
  if (text == "all") {
    append(0, Slot(num_slots - 1));
    return slots;
  }
  for (bool more = true; more;) {
    const std::size_t comma = text.find(',');
    const std::string_view part = text.substr(0, comma);
    more = comma != text.npos;
    if (more) text.remove_prefix(comma + 1);
    const std::size_t dash = part.find('-');
    const Slot first = parse_slot(part.substr(0, dash), num_slots);
    const Slot last = dash == part.npos ? first : parse_slot(part.substr(dash + 1), num_slots);
    if (last < first) throw ArgumentError(fmt::format("the range {} ends before it starts", part));
    append(first, last);
  }
  return slots;
}

std::string to_text(std::span<const Slot> slots) {
  constexpr std::size_t kShown = 8;
  std::string text;
  for (std::size_t shown = 0; !slots.empty(); ++shown) {
    if (shown == kShown) return text + ", ...";
    const std::size_t run = run_length(slots);
    text += fmt::format("{}{}", shown == 0 ? "" : ", ", slots[0]);
    if (run > 1) text += fmt::format("-{}", slots[run - 1]);
    slots = slots.subspan(run);
  }
  return text;
}

}  // namespace moetap::tool
