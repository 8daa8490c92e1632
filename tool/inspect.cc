#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tool/commands.h"
#include "tool/inspection.h"
#include "tool/output.h"
#include "tool/selection.h"
#include "tool/text.h"

namespace moetap::tool {

ExitStatus inspect_command(const InspectOptions& options) {
  bool damaged = false;
  auto list = nlohmann::json::array();
  std::string text;
  for (const SegmentInfo& segment : select_segments(options.name)) {
    try {
      const Inspection found = inspect(segment);
      damaged = damaged || !found.problem.empty();
      list.push_back(to_json(found));
      text += to_text(found);
    } catch (const NotThere&) {  // it has just been removed
    }
  }
  if (list.empty() && !options.name.empty()) {
    throw NotThere(
        fmt::format("no segment and no instance is named '{}'", printable(options.name)));
  }
  if (list.empty()) text = "no segments\n";
  print(options.json ? nlohmann::json{{"segments", list}}.dump() + '\n' : text);
  return damaged ? kDamaged : kDone;
}

}  // namespace moetap::tool
