#include <moetap/error.h>
#include <moetap/routes_json.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/internal/json_text.h"
#include "lib/internal/text.h"
#include "lib/rows/npy_header.h"

namespace moetap {
namespace {

using Json = nlohmann::json;
using detail::is_integer;

constexpr std::string_view kNpyKey = "\"npy\"";
constexpr RowState kNotPresent[] = {RowState::missing, RowState::stale, RowState::clobbered,
                                    RowState::unverified};

std::string not_present(const Routes& routes) {
  std::string text;
  const auto states = routes.states();
  for (std::size_t i = 0; i < states.size();) {
    std::size_t end = i + 1;
    while (end < states.size() && states[end] == states[i]) ++end;
    if (states[i] != RowState::present) {
      const std::int64_t start = routes.range().start;
      fmt::format_to(std::back_inserter(text), "{}[{}, {}, \"{}\"]", text.empty() ? "" : ", ",
                     start + static_cast<std::int64_t>(i), start + static_cast<std::int64_t>(end),
                     row_state_name(states[i]));
    }
    i = end;
  }
  return text;
}

std::string weights(const Routes& routes) {
  const WeightType type = routes.shape().weight_type();
  if (type == WeightType::none) return "";
  const std::string file = weights_to_npy(routes);
  return fmt::format(R"(, "weights": {{"dtype": "{}", "npy": "{}"}})", weight_type_name(type),
                     base64_encode(std::as_bytes(std::span(file))));
}

// What to_json() wrote. A parser reads strings byte by byte, which is slow for arrays of megabytes.
// So these are taken out of the text before: "npy" is then an index into `arrays`.
struct Parsed {
  Json json;
  std::vector<std::string_view> arrays;
};

Json parse_object(std::string_view text) {
  Json json = detail::parse_json(text, "routes");
  if (!json.is_object()) {
    throw ArgumentError(fmt::format(
        "routes that are no JSON object: {}; give what to_json() returned", detail::shown(json)));
  }
  return json;
}

// Where the value of the "npy" that text[at] begins is, without its quotation marks. Empty if it is
// no string, or one with more than plain characters.
std::string_view array_at(std::string_view text, std::size_t at) {
  constexpr std::string_view kBlanks = " \t\r\n";
  at = text.find_first_not_of(kBlanks, at + kNpyKey.size());
  if (at == text.npos || text[at] != ':') return {};
  at = text.find_first_not_of(kBlanks, at + 1);
  if (at == text.npos || text[at] != '"') return {};
  const std::size_t end = text.find('"', at + 1);
  if (end == text.npos) return {};
  const std::string_view array = text.substr(at + 1, end - at - 1);
  const auto is_plain = [](char c) { return c >= ' ' && c <= '~' && c != '\\'; };
  return std::ranges::all_of(array, is_plain) ? array : std::string_view();
}

// How many of the objects have an index as "npy".
std::size_t count_arrays(const Json& json) {
  std::size_t count = 0;
  for (const auto& [key, value] : json.items()) {
    count += value.is_object() ? count_arrays(value) : key == "npy" && value.is_number() ? 1 : 0;
  }
  return count;
}

Parsed parse(std::string_view text) {
  Parsed parsed;
  std::string short_text;
  std::size_t copied = 0;
  for (auto at = text.find(kNpyKey); at != text.npos; at = text.find(kNpyKey, at + 1)) {
    const std::string_view array = array_at(text, at);
    if (array.empty()) continue;
    const auto begin = static_cast<std::size_t>(array.data() - text.data()) - 1;
    short_text += text.substr(copied, begin - copied);
    short_text += std::to_string(parsed.arrays.size());
    parsed.arrays.push_back(array);
    copied = at = begin + array.size() + 2;
  }
  short_text += text.substr(copied);
  try {
    parsed.json = parse_object(short_text);
    if (count_arrays(parsed.json) == parsed.arrays.size()) return parsed;
  } catch (const ArgumentError&) {  // whose message would be about the shorter text
  }
  return {parse_object(text), {}};
}

// `right`: what it must be.
[[noreturn]] void bad_member(const Json& json, const char* name, const char* right) {
  throw ArgumentError(fmt::format("routes whose \"{}\" is {}; it must be {}", name,
                                  json.contains(name) ? detail::shown(json[name]) : "not there",
                                  right));
}

// What is not understood could be what tells these rows from others. `path` of the object: "" or
// "weights.".
void require_known(const Json& object, std::string_view path,
                   std::span<const std::string_view> known) {
  for (const auto& [key, value] : object.items()) {
    if (std::ranges::find(known, key) != known.end()) continue;
    throw ArgumentError(fmt::format(
        "routes with {}, which is {} and not understood; known are {}: put what is your own beside "
        "the object, not into it",
        detail::shown(std::string(path) + key), detail::shown(value), detail::join(known)));
  }
}

std::int64_t integer(const Json& json, const char* name) {
  const auto found = json.find(name);
  if (found == json.end() || !is_integer(*found)) bad_member(json, name, "a whole number");
  return found->get<std::int64_t>();
}

std::string string(const Json& json, const char* name) {
  const auto found = json.find(name);
  if (found == json.end() || !found->is_string()) bad_member(json, name, "a string");
  return found->get<std::string>();
}

const Json& array(const Json& json, const char* name) {
  const auto found = json.find(name);
  if (found == json.end() || !found->is_array()) bad_member(json, name, "a list");
  return *found;
}

// The array in an object.
std::vector<std::byte> decoded(const Parsed& parsed, const Json& object) {
  const auto found = object.find("npy");
  if (!parsed.arrays.empty() && found != object.end() && found->is_number()) {
    return base64_decode(parsed.arrays.at(found->get<std::size_t>()));
  }
  return base64_decode(string(object, "npy"));
}

std::string_view text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The number of layers alone does not distinguish one pipeline stage from another (H31).
void require_same_model(const Json& json, const ModelShape& shape) {
  const Json& layers = array(json, "layers");
  if (!std::ranges::all_of(layers, is_integer)) {
    bad_member(json, "layers", "a list of whole numbers");
  }
  if (layers != Json(shape.moe_layers())) {
    throw ArgumentError(fmt::format(
        "routes of MoE layers {} for rows of MoE layers {}: read them as the shape that they were "
        "written with; Routes::with_layers() takes some of its layers",
        detail::shown(layers), detail::join_ranges(shape.moe_layers())));
  }
  if (const std::int64_t experts = integer(json, "num_experts"); experts != shape.num_experts()) {
    throw ArgumentError(
        fmt::format("routes of {} experts for rows of {}: read them as the shape that they were "
                    "written with",
                    experts, shape.to_string()));
  }
}

// "shape" describes the array of ids, and so that of the weights.
void require_shape(const Json& json, const char* name, std::string_view file) {
  const Json& said = array(json, "shape");
  if (!std::ranges::all_of(said, is_integer)) bad_member(json, "shape", "a list of whole numbers");
  if (const Json held(detail::read_npy_header(file).shape); said != held) {
    throw ArgumentError(fmt::format(
        "routes whose \"shape\" is {}, but the array in \"{}\" has {}: give the shape of the array "
        "that is there, or the array that was meant",
        detail::shown(said), name, detail::shown(held)));
  }
}

// There must be ids, and weights if and only if the shape has them.
Routes rows(const Parsed& parsed, std::string_view ids, const ModelShape& shape,
            std::int64_t start) {
  const Json& json = parsed.json;
  const auto found = json.find("weights");
  const std::string_view type = weight_type_name(shape.weight_type());
  if (shape.weight_type() == WeightType::none) {
    if (found == json.end()) return from_npy(ids, shape, start);
    throw ArgumentError(
        fmt::format("routes with weights for rows of {}: read them as the shape that they were "
                    "written with, shape.with_weights(), or write them without",
                    shape.to_string()));
  }
  if (found == json.end() || !found->is_object()) {
    bad_member(json, "weights", "an object of \"dtype\" and \"npy\"");
  }
  constexpr std::string_view kMembers[] = {"dtype", "npy"};
  require_known(*found, "weights.", kMembers);
  if (string(*found, "dtype") != type) {
    throw ArgumentError(fmt::format(
        "routes with {} weights for rows of {}: read them as the shape that they were written "
        "with, shape.with_weights() of that type",
        detail::shown((*found)["dtype"]), shape.to_string()));
  }
  const std::vector<std::byte> file = decoded(parsed, *found);
  require_shape(json, "weights.npy", text_of(file));
  return from_npy(ids, text_of(file), shape, start);
}

RowState state_named(const Json& run) {
  const auto* found =
      std::ranges::find(kNotPresent, run[2].get_ref<const std::string&>(), row_state_name);
  if (found != std::end(kNotPresent)) return *found;
  std::vector<std::string_view> names;
  std::ranges::transform(kNotPresent, std::back_inserter(names), row_state_name);
  throw ArgumentError(fmt::format("routes whose \"not_present\" has {}; a row there can be \"{}\"",
                                  detail::shown(run), fmt::join(names, "\", \"")));
}

// Says why rows have no ids. An unverified row had some, but they are not in the text.
void note_reasons(const Json& runs, Routes& routes) {
  std::int64_t next = routes.range().start;
  for (const Json& run : runs) {
    if (!run.is_array() || run.size() != 3 || !is_integer(run[0]) || !is_integer(run[1]) ||
        !run[2].is_string()) {
      throw ArgumentError(fmt::format(
          "routes whose \"not_present\" has {}; it must be a list of [start, end, state]",
          detail::shown(run)));
    }
    const RowState state = state_named(run);
    const TokenRange rows{run[0].get<std::int64_t>(), run[1].get<std::int64_t>()};
    const TokenRange all = routes.range();
    if (rows.start < all.start || rows.end > all.end || rows.start > rows.end) {
      throw ArgumentError(
          fmt::format("routes of [{}, {}) whose \"not_present\" has [{}, {}); it must lie within "
                      "them, and not end before it starts",
                      all.start, all.end, rows.start, rows.end));
    }
    if (rows.start < next) {
      throw ArgumentError(fmt::format(
          "routes whose \"not_present\" has [{}, {}) after rows up to {}: give each row "
          "one state, and rows in ascending order",
          rows.start, rows.end, next));
    }
    next = rows.end;
    for (std::int64_t p = rows.start; p < rows.end; ++p) {
      RowState& known = routes.states()[static_cast<std::size_t>(p - all.start)];
      if (known != RowState::missing) {
        throw ArgumentError(
            fmt::format("routes whose row {} has ids, but is \"{}\": give only rows of -1 a state",
                        p, row_state_name(state)));
      }
      if (state != RowState::unverified) known = state;
    }
  }
}

}  // namespace

std::string to_json(const Routes& routes, IdType type) {
  const std::string rows = not_present(routes);
  return fmt::format(
      R"({{"start": {}, "end": {}, "dtype": "{}", "shape": [{}, {}, {}], "layers": [{}], )"
      R"("num_experts": {}, "npy": "{}"{}{}}})",
      routes.range().start, routes.range().end, id_type_name(type), routes.range().size(),
      routes.shape().num_layers(), routes.shape().top_k(),
      fmt::join(routes.shape().moe_layers(), ", "), routes.shape().num_experts(),
      to_npy_base64(routes, type), weights(routes),
      rows.empty() ? "" : fmt::format(R"(, "not_present": [{}])", rows));
}

Routes from_json(std::string_view text, const ModelShape& shape) {
  const Parsed parsed = parse(text);
  const Json& json = parsed.json;
  constexpr std::string_view kMembers[] = {"start",       "end", "dtype",   "shape",      "layers",
                                           "num_experts", "npy", "weights", "not_present"};
  require_known(json, "", kMembers);
  const std::int64_t start = integer(json, "start");
  const std::int64_t end = integer(json, "end");
  const std::string dtype = string(json, "dtype");
  require_same_model(json, shape);
  const std::vector<std::byte> file = decoded(parsed, json);
  const std::string_view bytes = text_of(file);
  require_shape(json, "npy", bytes);

  Routes routes = rows(parsed, bytes, shape, start);
  if (routes.range().end != end) {
    throw ArgumentError(fmt::format(
        "routes that say [{}, {}), but hold the {} rows [{}, {}): give the positions of those that "
        "are there, or the rows that were meant",
        start, end, routes.range().size(), routes.range().start, routes.range().end));
  }
  const std::optional<IdType> held = detail::id_type_named(detail::read_npy_header(bytes).type);
  if (const auto type = id_type_name(held.value()); type != dtype) {
    throw ArgumentError(fmt::format(
        "routes whose \"dtype\" is {}, but which hold {}: give the type of the array that is there",
        detail::shown(json["dtype"]), type));
  }
  if (json.contains("not_present")) note_reasons(array(json, "not_present"), routes);
  return routes;
}

}  // namespace moetap
