// Runs a program in its own process, with its input and output on pipes.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace demo::test {

// Signals as for a program at a terminal, also where the tests run without one, as under nohup.
struct Attributes {
  Attributes() {
    sigset_t signals;
    sigemptyset(&signals);
    posix_spawnattr_init(&spawn);
    posix_spawnattr_setsigmask(&spawn, &signals);
    for (const int signal : {SIGHUP, SIGINT, SIGTERM, SIGPIPE}) sigaddset(&signals, signal);
    posix_spawnattr_setsigdefault(&spawn, &signals);
    posix_spawnattr_setflags(&spawn, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  }
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;
  ~Attributes() { posix_spawnattr_destroy(&spawn); }

  posix_spawnattr_t spawn;
};

class Program {
 public:
  // For anything that must happen, on a busy machine and under a sanitizer.
  static constexpr std::chrono::seconds kPatience{120};

  explicit Program(std::vector<std::string> command) {
    std::vector<char*> arguments;
    arguments.reserve(command.size() + 1);
    for (std::string& argument : command) arguments.push_back(argument.data());
    arguments.push_back(nullptr);
    int in[2];
    int out[2];
    if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0) {
      throw std::runtime_error("no pipes");
    }
    input_ = in[1];
    output_ = out[0];
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDERR_FILENO);
    const Attributes attributes;
    const int error =
        posix_spawn(&pid_, arguments[0], &actions, &attributes.spawn, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    ::close(in[0]);
    ::close(out[1]);
    if (error != 0) throw std::runtime_error("cannot start " + command[0]);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    close_input();
    ::close(output_);
  }

  pid_t pid() const { return pid_; }
  const std::string& output() const { return text_; }  // what has been read so far, both streams

  void close_input() {
    if (input_ >= 0) ::close(std::exchange(input_, -1));
  }

  // Reads output until it has `text`. False at its end, or when patience runs out.
  bool wait_for_output(const std::string& text) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (text_.find(text) == text_.npos) {
      if (!read_some(deadline)) return false;
    }
    return true;
  }

  // Reads the rest of the output and waits for the end. The exit status, or -signal.
  int join() {
    if (pid_ <= 0) throw std::logic_error("joined before");
    close_input();
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (read_some(deadline)) {
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      ADD_FAILURE() << "does not end; it wrote:\n" << text_;
      ::kill(pid_, SIGKILL);
    }
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  bool read_some(std::chrono::steady_clock::time_point deadline) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    pollfd ready{output_, POLLIN, 0};
    if (left.count() <= 0 || ::poll(&ready, 1, static_cast<int>(left.count())) != 1) return false;
    char buffer[4096];
    const ssize_t got = ::read(output_, buffer, sizeof buffer);
    if (got <= 0) return false;
    text_.append(buffer, static_cast<std::size_t>(got));
    return true;
  }

  pid_t pid_ = -1;
  int input_ = -1;
  int output_ = -1;
  std::string text_;
};

}  // namespace demo::test
