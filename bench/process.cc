#include "bench/process.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <stdexcept>

namespace moetap::bench {

Process::Process(const std::function<void()>& body) {
  std::fflush(nullptr);
  pid_ = fork();
  if (pid_ < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (pid_ > 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  int status = 0;
  try {
    body();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "second process: %s\n", error.what());
    status = 1;
  }
  _exit(status);
}

Process::~Process() {
  if (pid_ <= 0) return;  // -1 would mean every process
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void Process::require_alive() {
  if (pid_ > 0 && waitpid(pid_, nullptr, WNOHANG) == 0) return;
  pid_ = 0;
  throw std::runtime_error("the benchmark's second process has ended");
}

}  // namespace moetap::bench
