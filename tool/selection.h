// The segments that a command applies to.
#pragma once

#include <moetap/segments.h>

#include <string>
#include <vector>

namespace moetap::tool {

// All segments if `name` is empty; otherwise the segment of that name (also without its '/'), or
// all of that instance.
std::vector<SegmentInfo> select_segments(const std::string& name);

}  // namespace moetap::tool
