// What happened in a simulation: its hash tells two runs apart, its text is for users who replay
// one. And how it ends if something is wrong.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <iterator>
#include <stdexcept>
#include <string>

#include "lib/internal/number_format.h"

namespace moetap::simulation {

// Something that must not happen did.
class Failure : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <class... Arguments>
void require(bool holds, fmt::format_string<Arguments...> text, Arguments&&... arguments) {
  if (!holds) throw Failure(fmt::format(text, std::forward<Arguments>(arguments)...));
}

// The call must be refused with this error.
template <class Error, class Call>
void require_refusal(const char* what, Call&& call) {
  try {
    call();
  } catch (const Error&) {
    return;
  }
  throw Failure(fmt::format("{} was not refused", what));
}

class History {
 public:
  // What is printed: nothing, what happened as text, or each call as a line of JSON (see trace.h).
  enum class Prints : std::uint8_t { nothing, text, calls };

  explicit History(Prints prints = Prints::nothing) : prints_(prints) {}

  template <class... Arguments>
  void note(fmt::format_string<Arguments...> text, Arguments&&... arguments) {
    line_.clear();
    fmt::format_to(std::back_inserter(line_), text, std::forward<Arguments>(arguments)...);
    // FNV-1a: http://www.isthe.com/chongo/tech/comp/fnv/
    for (const char c : line_) hash_ = (hash_ ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    if (prints_ == Prints::text) std::puts(line_.c_str());
  }

  bool has_calls() const { return prints_ == Prints::calls; }
  // A line of its own; it does not count for the hash.
  void call(const std::string& line) {
    if (has_calls()) std::puts(line.c_str());
  }

  std::uint64_t hash() const { return hash_; }

 private:
  Prints prints_;
  std::string line_;
  std::uint64_t hash_ = 0xcbf29ce484222325;
};

}  // namespace moetap::simulation
