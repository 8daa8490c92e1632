#include "lib/internal/text.h"

#include <fmt/format.h>

#include <cstddef>

#include "lib/internal/number_format.h"

namespace moetap::detail {

std::string join_ranges(std::span<const int> numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    if (!text.empty()) text += ", ";
    text += std::to_string(numbers[i]);
    if (last > i) text += (last == i + 1 ? ", " : "-") + std::to_string(numbers[last]);
    i = last + 1;
  }
  return text;
}

std::string within(std::chrono::milliseconds timeout) {
  return timeout.count() > 0 ? fmt::format(" within {} ms", timeout.count()) : "";
}

std::string join(std::span<const std::string_view> words) {
  std::string text;
  for (const std::string_view word : words) {
    if (!text.empty()) text += ", ";
    text += word;
  }
  return text;
}

std::string step_range(Step first, Step last) {
  if (first == last) return fmt::format("step {}", first);
  return fmt::format("steps {} to {}", first, last);
}

}  // namespace moetap::detail
