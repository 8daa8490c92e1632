// What the tests of the `moetap` program share: the program, and workers in other processes.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ipc/internal/channel.h"
#include "ipc/internal/names.h"
#include "ipc/internal/shm_writer.h"
#include "test/examples/program.h"
#include "test/ipc/message_of.h"
#include "test/ipc/shm_test.h"

namespace moetap::test {

using Slots = std::vector<Slot>;

struct Result {
  int status = -1;
  std::string output;

  // Of a command that was given --json. Fails the test if it is none.
  nlohmann::json json() const {
    auto parsed = nlohmann::json::parse(output, nullptr, false);
    EXPECT_FALSE(parsed.is_discarded()) << output;
    return parsed;
  }
};

inline Result run_tool(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), MOETAP_TOOL);
  demo::test::Program program(std::move(arguments));
  const int status = program.join();
  return {status, program.output()};
}

// The program with its standard output somewhere else: nowhere if the descriptor is -1. Its
// messages are lost.
class ToolInto {
 public:
  ToolInto(int output, std::vector<std::string> arguments)
      : ToolInto(output, std::vector<std::string>{MOETAP_TOOL}, std::move(arguments)) {}
  // `wrapper` runs the program.
  ToolInto(int output, std::vector<std::string> wrapper, std::vector<std::string> arguments) {
    wrapper.insert(wrapper.end(), arguments.begin(), arguments.end());
    std::vector<char*> command;
    command.reserve(wrapper.size() + 1);
    for (std::string& word : wrapper) command.push_back(word.data());
    command.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    if (output < 0) {
      posix_spawn_file_actions_addclose(&actions, STDOUT_FILENO);
    } else {
      posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
    }
    const demo::test::Attributes attributes;
    const int error =
        posix_spawn(&pid_, command[0], &actions, &attributes.spawn, command.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0) throw std::runtime_error("cannot start " + wrapper[0]);
  }
  ToolInto(const ToolInto&) = delete;
  ToolInto& operator=(const ToolInto&) = delete;
  ~ToolInto() {
    if (pid_ > 0) ::kill(pid_, SIGKILL), join();
  }

  pid_t pid() const { return pid_; }
  long peak_kib() const { return usage_.ru_maxrss; }  // of memory, once it has ended

  // The exit status, or -signal.
  int join() {
    const int fd = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
    pollfd ended{fd, POLLIN, 0};
    if (poll(&ended, 1, kPatienceMs) != 1) {
      ADD_FAILURE() << "does not end";
      ::kill(pid_, SIGKILL);
    }
    close(fd);
    int status = 0;
    wait4(std::exchange(pid_, -1), &status, 0, &usage_);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t pid_ = -1;
  rusage usage_{};
};

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  explicit Descriptor(const char* path) : Descriptor(open(path, O_WRONLY | O_CLOEXEC)) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { close(fd_); }
  int get() const { return fd_; }

 private:
  int fd_;
};

class ToolTest : public ShmTest {
 protected:
  // Publishes steps 1 … with these slots, then lives until it is killed.
  class Worker {
   public:
    Worker(const Endpoint& endpoint, const std::vector<Slots>& steps)
        : process_([&] {
            ShmWriter writer(endpoint);
            Step step = 0;
            for (const Slots& slots : steps) {
              ++step;
              writer.publish(step, unmarked(slots), rows_of(endpoint.shape, step, slots));
            }
            published_.raise();
            pause();
          }) {
      published_.wait();
    }
    pid_t pid() const { return process_.pid(); }
    void kill() { process_.kill(); }

   private:
    Signal published_;
    ChildProcess process_;
  };

  std::string name() const { return buffer_name(endpoint); }

  // The same of a worker that was killed. Any worker that starts meanwhile, another test's too,
  // reclaims what this one left: then there is another.
  Result run_on_dead(const std::vector<Slots>& steps, const std::vector<std::string>& arguments) {
    for (int tries = 0; tries < 100; ++tries) {
      Worker(endpoint, steps).kill();
      Result result = run_tool(arguments);
      if (result.status != 3) return result;
    }
    ADD_FAILURE() << "others reclaim each dead worker's segment at once";
    return {};
  }

  // What inspect says about the one segment of this name; checks the exit status.
  nlohmann::json inspected(const std::string& name, int status = 0) const {
    const Result result = run_tool({"inspect", name, "--json"});
    EXPECT_EQ(result.status, status) << result.output;
    const auto list = result.json()["segments"];
    EXPECT_EQ(list.size(), 1u) << result.output;
    return list.empty() ? nlohmann::json() : list[0];
  }
};

}  // namespace moetap::test
