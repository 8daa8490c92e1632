// A second process for a test, and a way to tell it (or to be told) that something has happened.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <utility>

namespace moetap::test {

inline constexpr int kPatienceMs = 60'000;  // for anything that must happen, on a busy machine

// Runs body() in a fork of this process; the child sees everything that existed before. Make it
// before any thread, and before the things that the child should make for itself.
class ChildProcess {
 public:
  template <class Body>
  explicit ChildProcess(Body&& body) {
    std::fflush(nullptr);
    pid_ = fork();
    if (pid_ < 0) throw std::runtime_error("fork failed");
    if (pid_ == 0) run(std::forward<Body>(body));
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  ~ChildProcess() { kill(); }

  pid_t pid() const { return pid_; }

  // 0 if body() returned and no expectation in it failed. -1 if it does not end.
  int join() {
    const int fd = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
    pollfd ended{fd, POLLIN, 0};
    const bool in_time = poll(&ended, 1, kPatienceMs) == 1;
    close(fd);
    return in_time ? reap() : -1;
  }

  bool ended() const {
    siginfo_t info{};
    return reaped_ ||
           (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
            info.si_pid != 0);
  }

  // As a crash: nothing of the child's runs any more.
  void kill() {
    if (reaped_) return;
    ::kill(pid_, SIGKILL);
    reap();
  }

 private:
  template <class Body>
  [[noreturn]] static void run(Body&& body) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int status = 1;
    try {
      body();
      status = testing::Test::HasFailure() ? 1 : 0;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "child process: %s\n", error.what());
    }
    std::fflush(nullptr);
    _exit(status);
  }

  int reap() {
    int status = -1;
    waitpid(pid_, &status, 0);
    reaped_ = true;
    return status;
  }

  pid_t pid_ = -1;
  bool reaped_ = false;
};

// Made before the fork. One side raises it, the other waits for it; once for each raise.
class Signal {
 public:
  Signal() {
    if (pipe(ends_.data()) != 0) throw std::runtime_error("pipe failed");
  }
  Signal(const Signal&) = delete;
  Signal& operator=(const Signal&) = delete;
  ~Signal() {
    close(ends_[0]);
    close(ends_[1]);
  }

  void raise() {
    if (write(ends_[1], "x", 1) != 1) throw std::runtime_error("cannot raise a signal");
  }
  void wait() {
    pollfd raised{ends_[0], POLLIN, 0};
    char byte = 0;
    if (poll(&raised, 1, kPatienceMs) != 1 || read(ends_[0], &byte, 1) != 1) {
      throw std::runtime_error("a signal was not raised in time");
    }
  }

 private:
  std::array<int, 2> ends_{};
};

}  // namespace moetap::test
