// Numbers of different kinds that cannot be mixed up: a step is no request, and a slot is no block.
#pragma once

#include <moetap/device_code.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <limits>
#include <utility>

namespace moetap {

// An integer that a number can be made of.
template <class T>
concept NumberSource = std::integral<T> && !std::same_as<T, bool>;

// A number of its own kind. It costs no more than its integer, Kind::Integer. If Kind::counts, then
// n + 1 is the next number, and two numbers have a distance.
//
// A constant converts by itself, and does not compile if it is out of range. An integer that is
// known only at run time is converted by name: Step(x). value() is the integer.
//
// An array of integers, such as an engine's slot mapping, may be looked at as an array of numbers,
// and the other way round: see as_slots() in <moetap/types.h>.
template <class Kind>
class [[gnu::may_alias]] Number {
 public:
  using Integer = typename Kind::Integer;

  constexpr Number() = default;

  template <class T>
  requires NumberSource<T>
  consteval Number(T constant) : value_(static_cast<Integer>(constant)) {
    if (!std::in_range<Integer>(constant)) throw "a constant out of the number's range";
  }

  template <class T>
  requires(NumberSource<T> && sizeof(T) <= sizeof(Integer)) MOETAP_DEVICE
      constexpr explicit Number(T value)
      : value_(static_cast<Integer>(value)) {}

  MOETAP_DEVICE constexpr Integer value() const { return value_; }

  static consteval Number min() { return Number(std::numeric_limits<Integer>::min()); }
  static consteval Number max() { return Number(std::numeric_limits<Integer>::max()); }

  MOETAP_DEVICE friend constexpr bool operator==(Number a, Number b) {
    return a.value_ == b.value_;
  }
  // These four, and not <=>, since device code does not have its result.
  MOETAP_DEVICE friend constexpr bool operator<(Number a, Number b) { return a.value_ < b.value_; }
  MOETAP_DEVICE friend constexpr bool operator>(Number a, Number b) { return b < a; }
  MOETAP_DEVICE friend constexpr bool operator<=(Number a, Number b) { return !(b < a); }
  MOETAP_DEVICE friend constexpr bool operator>=(Number a, Number b) { return !(a < b); }

  MOETAP_DEVICE friend constexpr Number operator+(Number a, std::int64_t n) requires Kind::counts {
    return Number(a.value_ + static_cast<Integer>(n));
  }
  MOETAP_DEVICE friend constexpr Number operator-(Number a, std::int64_t n) requires Kind::counts {
    return Number(a.value_ - static_cast<Integer>(n));
  }
  MOETAP_DEVICE friend constexpr std::int64_t operator-(Number a, Number b) requires Kind::counts {
    return static_cast<std::int64_t>(a.value_ - b.value_);
  }
  MOETAP_DEVICE constexpr Number& operator+=(std::int64_t n) requires Kind::counts {
    return *this = *this + n;
  }
  MOETAP_DEVICE constexpr Number& operator-=(std::int64_t n) requires Kind::counts {
    return *this = *this - n;
  }
  MOETAP_DEVICE constexpr Number& operator++() requires Kind::counts { return *this += 1; }
  MOETAP_DEVICE constexpr Number operator++(int) requires Kind::counts {
    const Number before = *this;
    *this += 1;
    return before;
  }

  // Prints the integer.
  template <class Char, class Traits>
  friend std::basic_ostream<Char, Traits>& operator<<(std::basic_ostream<Char, Traits>& stream,
                                                      Number number) {
    return stream << number.value_;
  }

 private:
  Integer value_ = 0;
};

}  // namespace moetap

template <class Kind>
struct std::hash<moetap::Number<Kind>> {
  std::size_t operator()(moetap::Number<Kind> number) const noexcept {
    return std::hash<typename Kind::Integer>()(number.value());
  }
};

// Not defined: use min() and max(). Those of the primary template would be 0.
template <class Kind>
class std::numeric_limits<moetap::Number<Kind>>;
