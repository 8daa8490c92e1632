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
  PyReaderOf(std::unique_ptr<T> reader, std::string what, Milliseconds timeout,
             std::optional<int> readable)
      : Guarded<T>(std::move(reader), std::move(what),
                   readable ? Guarded<T>::Threads::any : Guarded<T>::Threads::one),
        timeout_(timeout),
        readable_(readable) {}

  // A wait's timeout: by default the endpoint's.
  Milliseconds timeout(const Timeout& given) const { return given ? given->ms() : timeout_; }
  // StateError without a polling thread.
  int fileno();

 private:
  Milliseconds timeout_;
  std::optional<int> readable_;
};
using PyReader = PyReaderOf<Reader>;
using PyRequestReader = PyReaderOf<RequestReader>;

// Calls wait(part of the timeout) until it returns, without the GIL. Between the parts it looks for
// signals, so that Ctrl-C ends a long wait. TimeoutError after the timeout, or when `wait` itself
// ends before its part is over: nothing will come any more.
template <class Wait>
auto wait_in_parts(Milliseconds timeout, Wait&& wait) {
  using Clock = std::chrono::steady_clock;
  constexpr Milliseconds kPart{100};
  const auto end = Clock::now() + timeout;
  for (;;) {
    const auto left = std::chrono::ceil<Milliseconds>(end - Clock::now());
    const Milliseconds part = std::clamp(left, Milliseconds(0), kPart);
    const auto part_end = Clock::now() + part - Milliseconds(2);
    try {
      const ReleasedGil release;
      return wait(part);
    } catch (const TimeoutError& late) {
      if (Clock::now() < part_end) throw;
      if (Clock::now() >= end) {
        if (timeout <= kPart) throw;
        throw TimeoutError(fmt::format("{} (waited {} ms in all)", late.what(), timeout.count()));
      }
    }
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

}  // namespace moetap::python
