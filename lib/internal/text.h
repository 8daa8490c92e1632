// Lists in messages.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace moetap::detail {

// Ascending numbers with runs joined: "3, 5-9".
std::string join_ranges(std::span<const int> numbers);

// "a, b, c".
std::string join(std::span<const std::string_view> words);

}  // namespace moetap::detail
