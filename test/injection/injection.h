// What a test does with the guards and points of lib/internal/injection.h. A program that links
// moetap_injected instead of moetap and moetap-gpu has them.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace moetap::injection {

// Switches one guard off while it lives; one at a time.
class SwitchedOff {
 public:
  explicit SwitchedOff(std::string guard);
  ~SwitchedOff();
  SwitchedOff(const SwitchedOff&) = delete;
  SwitchedOff& operator=(const SwitchedOff&) = delete;
};

// Called with the name of every point that any thread reaches, from now on. Set it before there is
// a second thread.
void on_point(std::function<void(std::string_view)> callback);

}  // namespace moetap::injection
