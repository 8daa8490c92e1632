#include "examples/simulator/process.h"

#include <moetap/error.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace demo {
namespace {

constexpr moetap::Milliseconds kLeaveLimit{10'000};

// Runs in the child, between fork and exec: only async-signal-safe calls.
[[noreturn]] void become_worker(int fd) {
  // Ctrl-C reaches the whole group; the worker exits when the scheduler does.
  ::signal(SIGINT, SIG_IGN);
  char number[16] = {};
  char* digit = number + sizeof number - 1;
  for (int rest = fd; rest > 0 || digit == number + sizeof number - 1; rest /= 10) {
    *--digit = static_cast<char>('0' + rest % 10);
  }
  ::fcntl(fd, F_SETFD, 0);  // this one stays open
  ::execl("/proc/self/exe", "moetap-demo", "worker", "--fd", digit, nullptr);
  ::_exit(127);
}

}  // namespace

WorkerProcess::WorkerProcess(int rank) : rank_(rank) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    throw moetap::SystemError(errno, "cannot make a socket for a worker");
  }
  socket_ = Socket(ends[0]);
  const Socket theirs(ends[1]);
  pid_ = ::fork();
  if (pid_ == 0) become_worker(theirs.fd());
  if (pid_ < 0) throw moetap::SystemError(errno, "cannot start a worker");
}

WorkerProcess::WorkerProcess(WorkerProcess&& other) noexcept
    : rank_(other.rank_), socket_(std::move(other.socket_)), pid_(std::exchange(other.pid_, -1)) {}

WorkerProcess::~WorkerProcess() {
  if (pid_ > 0) end();
}

std::string WorkerProcess::name() const { return fmt::format("worker {} (pid {})", rank_, pid_); }

void WorkerProcess::send(Message message, std::span<const std::byte> payload) {
  try {
    socket_.send(message, payload);
  } catch (const moetap::SystemError&) {
    check();
    throw;
  }
}

void WorkerProcess::check() {
  siginfo_t info{};
  const bool died =
      ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
      info.si_pid != 0;
  // Throws at the end of its messages at the latest.
  while (died || socket_.failed()) expect(Message::reply);
}

std::span<const std::byte> WorkerProcess::expect(Message expected) {
  const auto received = socket_.receive();
  if (!received) {
    const std::string who = name();
    const std::string how = end();
    throw std::runtime_error(fmt::format("{} ended: {}", who, how.empty() ? "early" : how));
  }
  if (received->message == Message::error) {
    throw std::runtime_error(fmt::format("{}: {}", name(), to_text(received->payload)));
  }
  if (received->message != expected) {
    throw std::runtime_error(fmt::format("{} answered out of turn", name()));
  }
  return received->payload;
}

void WorkerProcess::join() {
  const std::string who = name();
  const std::string how = end();
  if (!how.empty()) throw std::runtime_error(fmt::format("{} ended: {}", who, how));
}

// Returns how it ended, or "" for exit status 0. Its process id must not be used after that: it may
// soon be another process's.
std::string WorkerProcess::end() {
  if (pid_ <= 0) return "before";
  socket_.finish();
  // The socket closes when the process has ended, after all its messages.
  const std::int64_t deadline = monotonic_ns() + kLeaveLimit.count() * 1'000'000;
  bool gone = false;
  std::byte rest[4096];
  while (!gone && monotonic_ns() < deadline) {
    if (!socket_.readable(moetap::Milliseconds(100))) continue;
    gone = ::recv(socket_.fd(), rest, sizeof rest, 0) <= 0;
  }
  if (!gone) ::kill(pid_, SIGKILL);
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  if (!gone) return fmt::format("killed, since it did not leave within {} ms", kLeaveLimit.count());
  if (WIFSIGNALED(status)) {
    return fmt::format("by signal {} ({})", WTERMSIG(status), ::strsignal(WTERMSIG(status)));
  }
  if (WEXITSTATUS(status) != 0) return fmt::format("with exit status {}", WEXITSTATUS(status));
  return "";
}

}  // namespace demo
