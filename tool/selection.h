// Which segments a command is about.
#pragma once

#include <moetap/segments.h>

#include <string>
#include <vector>

namespace moetap::tool {

// All if `name` is empty, else the segment of that name (also without its '/'), or all of that
// instance.
std::vector<SegmentInfo> select_segments(const std::string& name);

}  // namespace moetap::tool
