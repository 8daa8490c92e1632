#include "lib/internal/accepted_tokens.h"

#include <moetap/error.h>

#include <fmt/format.h>

#include <algorithm>

#include "lib/internal/number_format.h"

namespace moetap::detail {

std::int64_t count_standing(TokenRange positions, std::int64_t num_tokens) {
  return std::clamp<std::int64_t>(num_tokens - 1 - positions.start, 0, positions.size());
}

void check_accepted(Step step, RequestId request, TokenRange positions, std::int64_t drafts,
                    std::int64_t count, std::span<const std::int64_t> accepted) {
  if (std::ssize(accepted) < count) {
    throw ArgumentError(fmt::format(
        "accept() of step {} of request {}: {} tokens stand from position {} on, `accepted` names "
        "{}; name each",
        step, request, count, positions.start, accepted.size()));
  }
  const std::int64_t size = positions.size();
  for (std::size_t i = 0; i < accepted.size(); ++i) {
    if (accepted[i] < 0 || accepted[i] >= size) {
      throw RangeError(
          fmt::format("accept() of step {} of request {}: token {} of those that it computed; "
                      "allowed are 0 to {}",
                      step, request, accepted[i], size - 1));
    }
    if (std::ranges::find(accepted.first(i), accepted[i]) != accepted.first(i).end()) {
      throw ArgumentError(
          fmt::format("accept() of step {} of request {}: token {} comes twice in `accepted`; it "
                      "stands at one position",
                      step, request, accepted[i]));
    }
  }
  const std::int64_t known = std::clamp<std::int64_t>(drafts - positions.start, 0, count);
  for (std::int64_t i = 0; i < known; ++i) {
    const std::int64_t token = accepted[static_cast<std::size_t>(i)];
    if (token == i) continue;
    throw ArgumentError(fmt::format(
        "accept() of step {} of request {}: token {} at place {} of `accepted`; the step's drafts "
        "begin at token {}, and those before it stand where they are",
        step, request, token, i, drafts - positions.start));
  }
}

std::int64_t count_in_place(std::span<const std::int64_t> accepted) {
  std::int64_t count = 0;
  for (const std::int64_t token : accepted) {
    if (token != count) break;
    ++count;
  }
  return count;
}

void check_in_place(Step step, RequestId request, std::span<const std::int64_t> accepted,
                    const char* why) {
  const std::int64_t count = count_in_place(accepted);
  if (count == std::ssize(accepted)) return;
  throw StateError(
      fmt::format("accept() of step {} of request {}: token {} at place {} of `accepted`, but {}",
                  step, request, accepted[static_cast<std::size_t>(count)], count, why));
}

}  // namespace moetap::detail
