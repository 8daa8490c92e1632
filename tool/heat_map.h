// How often each expert was picked, one line per layer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace moetap::tool {

struct LayerLoad {
  int layer = 0;                     // the model's id
  std::vector<std::uint64_t> picks;  // by expert
};

struct HeatMapStyle {
  int columns = 64;  // cells in a line; with more experts, neighbours share one
  int lines = 0;     // maximum number, taken evenly from all layers; 0: all
  bool colour = false;
};

// Each cell shows its experts' picks relative to an even load, in ten levels from none to at least
// twice that, as colours or as " .:-=+*#%@". The busiest expert's load follows.
std::string heat_map(const std::vector<LayerLoad>& layers, const HeatMapStyle& style);

}  // namespace moetap::tool
