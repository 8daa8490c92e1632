// Formats steps, requests, slots and blocks as their integers.
#pragma once

#include <moetap/number.h>

#include <fmt/format.h>

template <class Kind>
struct fmt::formatter<moetap::Number<Kind>> {
  constexpr auto parse(fmt::format_parse_context& context) { return context.begin(); }
  template <class Context>
  auto format(moetap::Number<Kind> number, Context& context) const {
    return fmt::format_to(context.out(), "{}", number.value());
  }
};
