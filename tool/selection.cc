#include "tool/selection.h"

#include <algorithm>

#include "ipc/internal/names.h"

namespace moetap::tool {
namespace {

bool is_of(const SegmentInfo& segment, const std::string& instance) {
  const auto named = parse_name(segment.name);
  return named && named->instance == instance;
}

}  // namespace

std::vector<SegmentInfo> select_segments(const std::string& name) {
  std::vector<SegmentInfo> found = find_segments();
  if (name.empty()) return found;
  const std::string full = name[0] == '/' ? name : '/' + name;
  const auto named = std::ranges::find(found, full, &SegmentInfo::name);
  if (named != found.end()) return {*named};
  std::erase_if(found, [&](const SegmentInfo& segment) { return !is_of(segment, name); });
  return found;
}

}  // namespace moetap::tool
