#include "bench/gpu_check/figures.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cmath>

namespace moetap::bench {
namespace {

nlohmann::json goal_of(const Figure& figure) {
  if (figure.at_most) return fmt::format("<= {}", *figure.at_most);
  if (figure.at_least) return fmt::format(">= {}", *figure.at_least);
  return nullptr;
}

}  // namespace

std::string to_json(const std::string& device, const Figures& figures) {
  nlohmann::json list = nlohmann::json::array();
  for (const Figure& figure : figures) {
    const nlohmann::json goal = goal_of(figure);
    list.push_back({{"name", figure.name},
                    {"value", figure.value},
                    {"unit", figure.unit},
                    {"goal", goal},
                    {"met", goal.is_null() ? nlohmann::json() : nlohmann::json(figure.met())}});
  }
  return nlohmann::json{{"device", device}, {"figures", list}}.dump(2);
}

}  // namespace moetap::bench
