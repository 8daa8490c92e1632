// Lists in messages.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "lib/internal/export.h"

namespace moetap::detail {

// Ascending numbers with runs joined: "3, 5-9".
MOETAP_INTERNAL_API std::string join_ranges(std::span<const int> numbers);

// "a, b, c".
std::string join(std::span<const std::string_view> words);

}  // namespace moetap::detail
