// How often each expert was picked, a line a layer.
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
  int lines = 0;     // at most, taken evenly from all layers; 0: all
  bool colour = false;
};

// Each cell shows its experts' picks against an even load's: in ten steps from none to twice that
// and more, as colours or as " .:-=+*#%@". Behind it stands the busiest expert's.
std::string heat_map(const std::vector<LayerLoad>& layers, const HeatMapStyle& style);

}  // namespace moetap::tool
