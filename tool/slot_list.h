// Lists of slots on a command line.
#pragma once

#include <moetap/types.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace moetap::tool {

// "0-15,40,64-79", or "all". ArgumentError for any other text, RangeError for a slot outside
// [0, num_slots).
std::vector<Slot> parse_slots(std::string_view text, std::int64_t num_slots);

// "9-11, 63", with the first few runs.
std::string to_text(std::span<const Slot> slots);

}  // namespace moetap::tool
