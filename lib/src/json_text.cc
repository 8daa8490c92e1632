#include "json_text.h"

#include <moetap/error.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

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

}  // namespace

Json parse_json(std::string_view text, std::string_view what) {
  Rules rules(what);
  try {
    return Json::parse(text, [&](int depth, Event event, const Json& parsed) {
      rules.see(depth, event, parsed);
      return true;
    });
  } catch (const Json::exception& error) {  // no JSON, or a number that no type holds
    throw ArgumentError(fmt::format("{}: no valid JSON: {}", what, cut(error.what())));
  }
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

std::string shown(const Json& value) { return cut(value.dump(-1, ' ', /*ensure_ascii=*/true)); }

}  // namespace moetap::detail
