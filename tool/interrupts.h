// Defers SIGHUP, SIGINT and SIGTERM to a suitable time.
#pragma once

#include <signal.h>

#include <chrono>

namespace moetap::tool {

// Defers these signals during its lifetime; one that arrived takes effect at its end. Signals that
// this process ignores stay ignored.
class Interrupts {
 public:
  Interrupts();  // SystemError, also from waiting below
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  bool came() const { return !sleep(std::chrono::nanoseconds(0)); }
  // Returns false at once if a signal arrived.
  bool sleep(std::chrono::nanoseconds pause) const;
  // Discards signals that arrived.
  void forget() const;

  int descriptor() const { return fd_; }  // for poll(): readable if a signal arrived

 private:
  sigset_t before_{};
  int fd_ = -1;
};

}  // namespace moetap::tool
