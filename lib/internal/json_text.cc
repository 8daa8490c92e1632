#include "lib/internal/json_text.h"

#include <moetap/error.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>
#include <set>
#include <vector>

namespace moetap::detail {
namespace {

using Json = nlohmann::json;
using Event = Json::parse_event_t;

constexpr std::size_t kMaxShown = 120;

std::string cut(std::string text) {
  if (text.size() > kMaxShown) text.replace(kMaxShown, std::string::npos, "...");
  return text;
}

// What the parser itself does not mind.
class Rules {
 public:
  explicit Rules(std::string_view what) : what_(what) {}

  void see(int depth, Event event, const Json& parsed) {
    switch (event) {
      case Event::object_start:
        keys_.emplace_back();
        [[fallthrough]];
      case Event::array_start:
        return check_depth(depth + 1);
      case Event::object_end:
        return keys_.pop_back();
      case Event::key:
        return check_key(parsed);
      default:
        return;
    }
  }

 private:
  void check_depth(int depth) const {
    if (depth <= kMaxJsonDepth) return;
    throw ArgumentError(fmt::format("{}: JSON that is nested {} deep or more; allowed are up to {}",
                                    what_, depth, kMaxJsonDepth));
  }
  void check_key(const Json& key) {
    if (keys_.back().insert(key.get_ref<const std::string&>()).second) return;
    throw ArgumentError(fmt::format(
        "{}: JSON with an object that has the key {} twice; give each once", what_, shown(key)));
  }

  std::string_view what_;
  std::vector<std::set<std::string>> keys_;  // of the objects that are open
};

// The word around a byte, for messages: the parser's own may be long before it comes to that.
std::string word_at(std::string_view text, std::size_t byte) {
  constexpr std::string_view kBetween = " \t\r\n,:[]{}\"";
  if (text.empty()) return "the end";
  byte = std::min(byte, text.size() - 1);
  std::size_t first = byte;
  std::size_t last = byte;
  if (kBetween.find(text[byte]) == kBetween.npos) {
    while (first > 0 && kBetween.find(text[first - 1]) == kBetween.npos) --first;
    last = std::min(text.find_first_of(kBetween, byte), text.size()) - 1;
  }
  return shown(text.substr(first, last - first + 1));
}

// "line 2, column 18: invalid literal, at \"None\"".
std::string describe(const Json::parse_error& error, std::string_view text) {
  constexpr std::string_view kPosition = "parse error at ";
  std::string reason = error.what();
  if (const auto at = reason.find(kPosition); at != reason.npos) {
    reason.erase(0, at + kPosition.size());
  }
  reason.resize(std::min(reason.size(), reason.find("; last read")));
  return fmt::format("{}, at {}", cut(std::move(reason)),
                     word_at(text, error.byte == 0 ? 0 : error.byte - 1));
}

// The end of a string that begins at text[at], a quotation mark.
std::size_t end_of_string(std::string_view text, std::size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at) {
    if (text[at] == '\\') ++at;
  }
  return std::min(at + 1, text.size());
}

}  // namespace

Json parse_json(std::string_view text, std::string_view what) {
  Rules rules(what);
  try {
    return Json::parse(text, [&](int depth, Event event, const Json& parsed) {
      rules.see(depth, event, parsed);
      return true;
    });
  } catch (const Json::parse_error& error) {
    throw ArgumentError(fmt::format("{}: no valid JSON: {}", what, describe(error, text)));
  } catch (const Json::exception& error) {  // a number that no type holds
    throw ArgumentError(fmt::format("{}: no valid JSON: {}", what, cut(error.what())));
  }
}

std::string quote_non_numbers(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  std::string result;
  char before = 0;  // the last that is no blank
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at + 1;
    std::string_view quotes;
    if (text[at] == '"') end = end_of_string(text, at);
    for (const std::string_view word : {"Infinity", "-Infinity", "NaN"}) {
      if ((before != ':' && before != '[' && before != ',') || !text.substr(at).starts_with(word)) {
        continue;
      }
      const auto after = text.find_first_not_of(kBlanks, at + word.size());
      if (after == text.npos || std::string_view(",]}").find(text[after]) == kBlanks.npos) continue;
      end = at + word.size();
      quotes = "\"";
    }
    result.append(quotes).append(text.substr(at, end - at)).append(quotes);
    if (kBlanks.find(text[at]) == kBlanks.npos) before = text[end - 1];
    at = end;
  }
  return result;
}

bool is_integer(const Json& value) {
  return value.is_number_integer() &&
         (!value.is_number_unsigned() ||
          value.get<std::uint64_t>() <= std::numeric_limits<std::int64_t>::max());
}

std::int64_t integer(std::string_view name, const Json& value, std::int64_t least,
                     std::int64_t most) {
  if (!is_integer(value) || value.get<std::int64_t>() < least || value.get<std::int64_t>() > most) {
    throw ArgumentError(fmt::format("\"{}\" is {}; it must be a whole number from {} to {}", name,
                                    shown(value), least, most));
  }
  return value.get<std::int64_t>();
}

std::string shown(const Json& value) {
  return cut(value.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace));
}

}  // namespace moetap::detail
