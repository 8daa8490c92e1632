// A measured value, with its goal if it has one.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace moetap::bench {

struct Figure {
  std::string name;
  double value = 0;
  std::string unit;
  std::optional<double> at_most{};
  std::optional<double> at_least{};

  bool met() const { return (!at_most || value <= *at_most) && (!at_least || value >= *at_least); }
};

using Figures = std::vector<Figure>;

// {"device": …, "figures": [{"name", "value", "unit", "goal", "met"}, …]}; without a goal the last
// two are null.
std::string to_json(const std::string& device, const Figures& figures);

}  // namespace moetap::bench
