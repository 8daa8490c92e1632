#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdio>

#include "commands.h"
#include "inspection.h"
#include "selection.h"
#include "text.h"

namespace moetap::tool {

ExitStatus inspect_command(const InspectOptions& options) {
  const auto segments = select_segments(options.name);
  if (segments.empty() && !options.name.empty()) {
    throw NotThere(
        fmt::format("no segment and no instance is named '{}'", printable(options.name)));
  }
  bool damaged = false;
  auto list = nlohmann::json::array();
  std::string text;
  for (const SegmentInfo& segment : segments) {
    const Inspection found = inspect(segment);
    damaged = damaged || !found.problem.empty();
    list.push_back(to_json(found));
    text += to_text(found);
  }
  if (segments.empty()) text = "no segments\n";
  std::fputs(
      options.json ? (nlohmann::json{{"segments", list}}.dump() + '\n').c_str() : text.c_str(),
      stdout);
  return damaged ? kDamaged : kDone;
}

}  // namespace moetap::tool
