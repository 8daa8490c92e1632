// The readers as Python has them.
#pragma once

#include <moetap/reader.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "python/src/guarded.h"

namespace moetap::python {

// A reader, with the descriptor of its polling thread if it has one.
template <class T>
class PyReaderOf : public Guarded<T> {
 public:
  PyReaderOf(std::unique_ptr<T> reader, std::string what, Milliseconds limit,
             std::optional<int> readable)
      : Guarded<T>(std::move(reader), std::move(what),
                   readable ? Guarded<T>::Threads::any : Guarded<T>::Threads::one),
        limit_(limit),
        readable_(readable) {}

  // A wait's timeout: by default the endpoint's.
  Milliseconds limit(const Timeout& given) const { return given ? given->ms() : limit_; }
  // StateError without a polling thread.
  int fileno();

 private:
  Milliseconds limit_;
  std::optional<int> readable_;
};
using PyReader = PyReaderOf<Reader>;
using PyRequestReader = PyReaderOf<RequestReader>;

// Calls wait(part of the limit) until it returns, without the GIL. Between the parts it looks for
// signals, so that Ctrl-C ends a long wait. TimeoutError after the limit, or when `wait` itself
// ends before its part is over: nothing will come any more.
template <class Wait>
auto wait_in_parts(Milliseconds limit, Wait&& wait) {
  using Clock = std::chrono::steady_clock;
  constexpr Milliseconds kPart{100};
  const auto end = Clock::now() + limit;
  for (;;) {
    const auto left = std::chrono::ceil<Milliseconds>(end - Clock::now());
    const Milliseconds part = std::clamp(left, Milliseconds(0), kPart);
    const auto part_end = Clock::now() + part - Milliseconds(2);
    try {
      const nb::gil_scoped_release release;
      return wait(part);
    } catch (const TimeoutError& late) {
      if (Clock::now() < part_end) throw;
      if (Clock::now() >= end) {
        if (limit <= kPart) throw;
        throw TimeoutError(fmt::format("{} (waited {} ms in all)", late.what(), limit.count()));
      }
    }
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

}  // namespace moetap::python
