#include "tool/heat_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string_view>

namespace moetap::tool {
namespace {

constexpr std::string_view kSteps = " .:-=+*#%@";
constexpr int kColours[] = {16, 17,  18,  24,  30,
                            64, 142, 178, 202, 196};  // of a 256-colour terminal
static_assert(std::size(kColours) == kSteps.size());

std::size_t step_of(double ratio) {
  if (ratio <= 0) return 0;
  return std::clamp<std::size_t>(static_cast<std::size_t>(ratio * 5), 1, kSteps.size() - 1);
}

std::string cells(const LayerLoad& load, double even, const HeatMapStyle& style) {
  const std::size_t experts = load.picks.size();
  const std::size_t columns = std::min(experts, static_cast<std::size_t>(style.columns));
  std::string text;
  for (std::size_t column = 0; column < columns; ++column) {
    const std::size_t first = column * experts / columns;
    const std::size_t last = (column + 1) * experts / columns;
    const auto begin = load.picks.begin();
    const auto picks = std::accumulate(begin + static_cast<std::ptrdiff_t>(first),
                                       begin + static_cast<std::ptrdiff_t>(last), std::uint64_t{0});
    const std::size_t step =
        even == 0
            ? 0
            : step_of(static_cast<double>(picks) / (even * static_cast<double>(last - first)));
    text +=
        style.colour ? fmt::format("\x1b[48;5;{}m ", kColours[step]) : std::string(1, kSteps[step]);
  }
  return style.colour ? text + "\x1b[0m" : text;
}

}  // namespace

std::string heat_map(const std::vector<LayerLoad>& layers, const HeatMapStyle& style) {
  const std::size_t lines = style.lines > 0
                                ? std::min(layers.size(), static_cast<std::size_t>(style.lines))
                                : layers.size();
  std::string text;
  for (std::size_t line = 0; line < lines; ++line) {
    const LayerLoad& load = layers[line * layers.size() / lines];
    const auto total = std::accumulate(load.picks.begin(), load.picks.end(), std::uint64_t{0});
    const double even = static_cast<double>(total) / static_cast<double>(load.picks.size());
    const auto busiest = std::ranges::max_element(load.picks);
    text += fmt::format("  layer {:>4} |{}|", load.layer, cells(load, even, style));
    text += total == 0 ? std::string(" nothing\n")
                       : fmt::format(" expert {} {:.2f}x\n", busiest - load.picks.begin(),
                                     static_cast<double>(*busiest) / even);
  }
  return text;
}

}  // namespace moetap::tool
