// Lists of layers in messages.
#pragma once

#include <span>
#include <string>

namespace moetap::detail {

// Ascending numbers with runs joined: "3, 5-9".
std::string join_ranges(std::span<const int> numbers);

}  // namespace moetap::detail
