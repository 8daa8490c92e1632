// Lists and ranges in messages.
#pragma once

#include <moetap/types.h>

#include <chrono>
#include <span>
#include <string>
#include <string_view>

#include "lib/internal/export.h"

namespace moetap::detail {

// Ascending numbers with runs joined: "3, 5-9".
MOETAP_INTERNAL_API std::string join_ranges(std::span<const int> numbers);

// "step 3", or "steps 3 to 5".
MOETAP_INTERNAL_API std::string step_range(Step first, Step last);

// " within 20 ms", or nothing where nothing was waited.
MOETAP_INTERNAL_API std::string within(std::chrono::milliseconds timeout);

// "a, b, c".
std::string join(std::span<const std::string_view> words);

}  // namespace moetap::detail
