// JSON that others wrote.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <string_view>

namespace moetap::detail {

// Copying, comparing and printing a value recurse: nested deeper, it could take the whole stack.
inline constexpr int kMaxJsonDepth = 64;

// ArgumentError that begins with `what`: no valid JSON, arrays and objects nested deeper than
// kMaxJsonDepth, or an object that has a key twice, of which a reader would see one.
nlohmann::json parse_json(std::string_view text, std::string_view what);

// For messages: ASCII, and cut where it is long.
std::string shown(const nlohmann::json& value);

}  // namespace moetap::detail
