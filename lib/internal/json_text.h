// JSON that others wrote.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace moetap::detail {

// Copying, comparing and printing a value recurse: nested deeper, it could take the whole stack.
inline constexpr int kMaxJsonDepth = 64;

// ArgumentError that begins with `what`: no valid JSON, arrays and objects nested deeper than
// kMaxJsonDepth, or an object that has a key twice, of which a reader would see one. What is no
// valid JSON is shown: its line, column and what was read there, cut where it is long.
nlohmann::json parse_json(std::string_view text, std::string_view what);

// As Python writes it: with numbers that are none as bare Infinity, -Infinity and NaN, which JSON
// has no words for. Those are strings in the result, where they stand for a value. Whoever needs a
// number there then says what it is instead.
nlohmann::json parse_python_json(std::string_view text, std::string_view what);

// Of a whole number in [least, most]; ArgumentError that names the value for anything else: neither
// a fraction nor a truth value, which the library would convert, nor a number that it would wrap.
std::int64_t integer(std::string_view name, const nlohmann::json& value, std::int64_t least,
                     std::int64_t most);
bool is_integer(const nlohmann::json& value);  // that fits

// For messages: ASCII, and cut where it is long.
std::string shown(const nlohmann::json& value);

}  // namespace moetap::detail
