// Reads JSON from other programs.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace moetap::detail {

// Copying, comparing and printing a value recurse: deeper nesting could overflow the stack.
inline constexpr int kMaxJsonDepth = 64;

// ArgumentError that begins with `what` for invalid JSON, arrays and objects nested deeper than
// kMaxJsonDepth, and an object that has a key twice (a reader would see only one). For invalid JSON
// the message has the line, the column and the text there, shortened if long.
nlohmann::json parse_json(std::string_view text, std::string_view what);

// As above for JSON that Python wrote, where values can be bare Infinity, -Infinity and NaN, which
// JSON does not have. They become strings in the result. A caller that needs a number there then
// reports the string.
nlohmann::json parse_python_json(std::string_view text, std::string_view what);

// A whole number in [least, most]. ArgumentError that names the value for anything else, including
// fractions and booleans, which the library would convert, and numbers that it would wrap.
std::int64_t integer(std::string_view name, const nlohmann::json& value, std::int64_t least,
                     std::int64_t most);
bool is_integer(const nlohmann::json& value);  // that fits

// A value for messages: ASCII, shortened if long.
std::string shown(const nlohmann::json& value);

}  // namespace moetap::detail
