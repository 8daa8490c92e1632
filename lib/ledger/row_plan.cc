#include <moetap/error.h>
#include <moetap/row_plan.h>

#include <fmt/format.h>

#include <algorithm>

#include "lib/internal/number_format.h"

namespace moetap {

void MovePlan::append(const MovePlan& next) {
  if (next.step != step) {
    throw ArgumentError(fmt::format(
        "rows of a plan with step {} appended to one with step {}; move each plan by itself",
        next.step, step));
  }
  from.insert(from.end(), next.from.begin(), next.from.end());
  windows.insert(windows.end(), next.windows.begin(), next.windows.end());
  to.insert(to.end(), next.to.begin(), next.to.end());
  last_step = std::max(last_step, next.last_step);
}

}  // namespace moetap
