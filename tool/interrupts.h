// SIGHUP, SIGINT and SIGTERM, at a time when they are wanted.
#pragma once

#include <signal.h>

#include <chrono>

namespace moetap::tool {

// Holds them back while it lives; one that came takes effect at its end. Those that this process
// was told to ignore stay ignored.
class Interrupts {
 public:
  Interrupts();  // SystemError, as the waiting below
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  bool came() const { return !sleep(std::chrono::nanoseconds(0)); }
  // False, at once, if one came.
  bool sleep(std::chrono::nanoseconds pause) const;
  // Those that came take no effect.
  void forget() const;

  int descriptor() const { return fd_; }  // for poll(): readable if one came

 private:
  sigset_t before_{};
  int fd_ = -1;
};

}  // namespace moetap::tool
