#include "tool/interrupts.h"

#include <moetap/error.h>

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>

namespace moetap::tool {

Interrupts::Interrupts() {
  sigset_t held{};
  sigemptyset(&held);
  for (const int signal : {SIGHUP, SIGINT, SIGTERM}) {
    struct sigaction action {};
    sigaction(signal, nullptr, &action);
    if (action.sa_handler != SIG_IGN) sigaddset(&held, signal);
  }
  fd_ = signalfd(-1, &held, SFD_CLOEXEC | SFD_NONBLOCK);
  if (fd_ < 0) throw SystemError(errno, "cannot wait for signals");
  sigprocmask(SIG_BLOCK, &held, &before_);
}

Interrupts::~Interrupts() {
  close(fd_);
  sigprocmask(SIG_SETMASK, &before_, nullptr);
}

bool Interrupts::sleep(std::chrono::nanoseconds pause) const {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(pause);
  const timespec limit{seconds.count(), (pause - seconds).count()};
  pollfd signals{fd_, POLLIN, 0};
  const int ready = ppoll(&signals, 1, &limit, nullptr);
  if (ready < 0 && errno != EINTR) throw SystemError(errno, "cannot wait for signals");
  return ready == 0;
}

void Interrupts::forget() const {
  signalfd_siginfo taken{};
  while (read(fd_, &taken, sizeof taken) > 0) {
  }
}

}  // namespace moetap::tool
