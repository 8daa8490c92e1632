// The calls of a worker and its scheduler, with what came of each, as lines of JSON. Whoever makes
// the same calls, in this order, must get the same: test/python does so through Python's package.
#pragma once

#include <moetap/routes.h>
#include <moetap/row_plan.h>

#include <nlohmann/json.hpp>

#include <exception>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "test/simulation/history.h"

namespace moetap::simulation {

using Json = nlohmann::json;

// Results and arguments as JSON: numbers, arrays, objects of the fields.
template <class Kind>
Json to_json(Number<Kind> number) {
  return number.value();
}
inline Json to_json(std::integral auto value) { return value; }
inline Json to_json(TokenRange range) { return {range.start, range.end}; }
Json to_json(const RowPlan& plan);
Json to_json(const MovePlan& plan);
Json to_json(const FillPlan& plan);
Json to_json(const Routes& routes);
Json to_json(std::span<const std::byte> bytes);
template <class T>
Json to_json(std::span<const T> values) {
  Json array = Json::array();
  for (const T& value : values) array.push_back(to_json(value));
  return array;
}
template <class T>
Json to_json(const std::vector<T>& values) {
  return to_json(std::span<const T>(values));
}

class Trace {
 public:
  Trace(History& history, int worker) : history_(history), worker_(worker) {}

  bool on() const { return history_.has_calls(); }
  // Something that has no result.
  void note(const char* what, Json fields);

  // Makes the call. `arguments` returns an object of its arguments.
  template <class Arguments, class Call>
  auto made(const char* what, Arguments&& arguments, Call&& call) {
    if (!on()) return call();
    Json fields = arguments();
    try {
      if constexpr (std::is_void_v<decltype(call())>) {
        call();
        note(what, std::move(fields));
      } else {
        auto result = call();
        fields["result"] = to_json(result);
        note(what, std::move(fields));
        return result;
      }
    } catch (const std::exception& error) {
      fields["error"] = error_name(error);
      note(what, std::move(fields));
      throw;
    }
  }

 private:
  // The name of its class.
  static const char* error_name(const std::exception& error);

  History& history_;
  int worker_;
};

}  // namespace moetap::simulation
