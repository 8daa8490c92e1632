#include <moetap/error.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <exception>

#include "tool/commands.h"
#include "tool/output.h"
#include "tool/selection.h"
#include "tool/text.h"

namespace moetap::tool {

ExitStatus gc_command(const GcOptions& options) {
  std::exception_ptr refused;
  // A segment that the system does not let be removed does not stop the removal of others.
  const auto may_remove = [&](const std::string& name) {
    if (options.dry_run) return true;
    try {
      return reclaim(name);
    } catch (const SystemError&) {
      if (!refused) refused = std::current_exception();
      return false;
    }
  };
  auto removed = nlohmann::json::array();
  std::uint64_t bytes = 0;
  std::string text;
  for (const SegmentInfo& segment : select_segments({})) {
    if (segment.owner != SegmentInfo::Owner::dead) continue;
    // A worker may have taken it over meanwhile.
    if (!may_remove(segment.name)) continue;
    removed.push_back({{"name", printable(segment.name)}, {"bytes", segment.bytes}});
    bytes += segment.bytes;
    text += fmt::format("{} {}, {}\n", options.dry_run ? "would remove" : "removed",
                        printable(segment.name), human_bytes(segment.bytes));
  }
  text += fmt::format("{} {} of {}\n", removed.size(), removed.size() == 1 ? "segment" : "segments",
                      human_bytes(bytes));
  const nlohmann::json json = {
      {"dry_run", options.dry_run}, {"removed", removed}, {"bytes", bytes}};
  print(options.json ? json.dump() + '\n' : text);
  if (refused) std::rethrow_exception(refused);
  return kDone;
}

}  // namespace moetap::tool
