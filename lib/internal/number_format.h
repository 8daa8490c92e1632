// Formats steps, requests, slots and blocks as their integers.
#pragma once

#include <moetap/number.h>

#include <fmt/format.h>

template <class Kind>
struct fmt::formatter<moetap::Number<Kind>> : fmt::formatter<typename Kind::Integer> {
  template <class Context>
  auto format(moetap::Number<Kind> number, Context& context) const {
    return fmt::formatter<typename Kind::Integer>::format(number.value(), context);
  }
};
