// Worker processes: this program again, with a socket to the scheduler.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>
#include <string>

#include "examples/simulator/protocol.h"

namespace demo {

// Starts `moetap-demo worker`, and ends it. The worker exits by itself when the socket is shut
// down, so that it can remove its shared memory; if it does not, it is killed. If the scheduler
// dies, the kernel closes the socket, and the worker exits too.
class WorkerProcess {
 public:
  // Call before the process has threads. moetap::SystemError.
  explicit WorkerProcess(int rank);
  WorkerProcess(WorkerProcess&& other) noexcept;
  WorkerProcess& operator=(WorkerProcess&&) = delete;
  ~WorkerProcess();

  // These throw a std::runtime_error with the worker's own error text, or with the way it died.
  void send(Message message, std::span<const std::byte> payload);
  std::span<const std::byte> expect(Message expected);  // the next message
  // Whether expect() would return or throw without waiting; waits up to `timeout` for that.
  bool ready(moetap::Milliseconds timeout) { return socket_.readable(timeout); }
  // Checks that it has neither failed nor died (earlier messages may still wait here). Never waits.
  void check();

  // Lets it exit and waits for it. std::runtime_error if it ended with an error.
  void join();

 private:
  std::string name() const;
  std::string end();

  int rank_;
  Socket socket_{-1};
  pid_t pid_ = -1;
};

}  // namespace demo
