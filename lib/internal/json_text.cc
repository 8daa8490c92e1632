#include "lib/internal/json_text.h"

#include <moetap/error.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <iterator>
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

// Checks that the parser itself does not make.
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
  std::vector<std::set<std::string>> keys_;  // of the open objects
};

constexpr std::string_view kBlanks = " \t\r\n";
constexpr std::string_view kBetween = " \t\r\n,:[]{}\"";  // words

bool is_in(char c, std::string_view set) { return set.find(c) != set.npos; }

// The end of a string that begins with the quotation mark text[at].
std::size_t end_of_string(std::string_view text, std::size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at) {
    if (text[at] == '\\') ++at;
  }
  return std::min(at + 1, text.size());
}

// The end of the string, word, sign or blank that begins at text[at].
std::size_t end_of_token(std::string_view text, std::size_t at) {
  if (text[at] == '"') return end_of_string(text, at);
  if (is_in(text[at], kBetween)) return at + 1;
  return std::min(text.find_first_of(kBetween, at), text.size());
}

// Arbitrary bytes, made printable for messages.
std::string quoted(std::string_view bytes) {
  constexpr std::size_t kEnd = kMaxShown / 2;  // bytes shown of each end of a long text
  std::string text = "\"";
  const auto append = [&](std::string_view some) {
    for (const char c : some) {
      if (c == '"' || c == '\\') text += '\\';
      if (c >= ' ' && c <= '~') {
        text += c;
      } else {
        fmt::format_to(std::back_inserter(text), "\\x{:02x}", static_cast<unsigned char>(c));
      }
    }
  };
  if (bytes.size() <= kMaxShown) {
    append(bytes);
    return text + '"';
  }
  append(bytes.substr(0, kEnd));
  text += "\" ... \"";
  append(bytes.substr(bytes.size() - kEnd));
  return fmt::format("{}\" ({} bytes, cut)", text, bytes.size());
}

// The text that the parser read before it stopped at text[stop], or at the end. `invalid`: not a
// token, so the text after it was not read; but a word is shown whole.
std::string read_at(std::string_view text, std::size_t stop, bool invalid) {
  std::size_t word = text.npos;  // that ends where this token begins
  std::string_view last;         // that is not blank
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = end_of_token(text, begin);
    const bool is_word = !is_in(text[begin], kBetween);
    if (stop < end) {
      if (!invalid || is_word) return "at " + quoted(text.substr(begin, end - begin));
      if (begin == stop && word != text.npos) begin = word;
      return "at " + quoted(text.substr(begin, stop + 1 - begin));
    }
    if (!is_in(text[begin], kBlanks)) last = text.substr(begin, end - begin);
    word = is_word ? begin : text.npos;
    begin = end;
  }
  return last.empty() ? "at the end" : "at the end, after " + quoted(last);
}

// "line 2, column 18: invalid literal, at \"None\"".
std::string describe(const Json::parse_error& error, std::string_view text, std::size_t stop) {
  constexpr std::string_view kPosition = ": ";  // ends it
  std::string reason = error.what();
  if (const auto at = reason.find("parse error"); at != reason.npos) {
    reason.erase(0, reason.find(kPosition, at) + kPosition.size());
  }
  const auto last_read = reason.find("; last read");
  reason.resize(std::min(reason.size(), last_read));
  const std::string_view before = text.substr(0, stop);
  return fmt::format("line {}, column {}: {}, {}", 1 + std::ranges::count(before, '\n'),
                     stop - (before.rfind('\n') + 1) + 1, cut(std::move(reason)),
                     read_at(text, stop, last_read != std::string::npos));
}

// Text with quotation marks added.
struct Quoted {
  std::string text;
  std::vector<std::size_t> added;  // where, ascending

  // Where text[at] was before.
  std::size_t original(std::size_t at) const {
    return at - static_cast<std::size_t>(std::ranges::upper_bound(added, at) - added.begin());
  }
};

// Puts quotes around Infinity, -Infinity and NaN where they are values.
Quoted quote_non_numbers(std::string_view text) {
  Quoted result;
  const auto quote = [&] {
    result.added.push_back(result.text.size());
    result.text += '"';
  };
  char before = 0;  // the last that is not blank
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = text[at] == '"' ? end_of_string(text, at) : at + 1;
    bool is_number = false;
    for (const std::string_view word : {"Infinity", "-Infinity", "NaN"}) {
      if (!is_in(before, ":[,") || !text.substr(at).starts_with(word)) continue;
      const auto after = text.find_first_not_of(kBlanks, at + word.size());
      if (after == text.npos || !is_in(text[after], ",]}")) continue;
      end = at + word.size();
      is_number = true;
    }
    if (is_number) quote();
    result.text.append(text.substr(at, end - at));
    if (is_number) quote();
    if (!is_in(text[at], kBlanks)) before = text[end - 1];
    at = end;
  }
  return result;
}

// An offset in `text`, for one in `parsed`.
Json parse(std::string_view text, std::string_view what, const Quoted* parsed) {
  Rules rules(what);
  try {
    return Json::parse(parsed ? std::string_view(parsed->text) : text,
                       [&](int depth, Event event, const Json& value) {
                         rules.see(depth, event, value);
                         return true;
                       });
  } catch (const Json::parse_error& error) {
    const std::size_t byte = error.byte == 0 ? 0 : error.byte - 1;
    const std::size_t stop = std::min(parsed ? parsed->original(byte) : byte, text.size());
    throw ArgumentError(fmt::format("{}: no valid JSON: {}", what, describe(error, text, stop)));
  } catch (const Json::exception& error) {  // a number that does not fit any type
    throw ArgumentError(fmt::format("{}: no valid JSON: {}", what, cut(error.what())));
  }
}

}  // namespace

Json parse_json(std::string_view text, std::string_view what) { return parse(text, what, nullptr); }

Json parse_python_json(std::string_view text, std::string_view what) {
  const Quoted quoted = quote_non_numbers(text);
  return parse(text, what, &quoted);
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
