// What both executors of the host device share: streams, events and graphs, built on queueing an
// operation and waiting for a point.
#pragma once

#include <moetap/device.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "gpu/device/host/memory.h"
#include "gpu/device/host/operation.h"

namespace moetap::host {

// Runs the queued operations. StateError for calls from a callback.
class Executor {
 public:
  bool reached(const Point& point) {
    refuse_in_callback("asking for progress");
    return poll(point);
  }
  void block_until(const Point& point) {
    refuse_in_callback("waiting");
    wait(point);
  }
  void block_until_all_done() {
    refuse_in_callback("freeing memory");
    wait_all();
  }

  Memory& memory() { return memory_; }

 protected:
  ~Executor() = default;

 private:
  virtual bool poll(const Point& point) = 0;
  virtual void wait(const Point& point) = 0;
  virtual void wait_all() = 0;

  Memory memory_;
};

class HostEvent final : public Event {
 public:
  explicit HostEvent(Executor& executor) : executor_(executor) {}

  bool done() override { return executor_.reached(point()); }
  void synchronize() override { executor_.block_until(point()); }

  Executor& executor() const { return executor_; }
  Point point() const;
  void move_to(Point point);

 private:
  Executor& executor_;
  mutable std::mutex mutex_;
  Point point_;
};

class HostGraph final : public Graph {
 public:
  HostGraph(Executor& executor, Recording recording)
      : executor_(executor), recording_(std::make_shared<Recording>(std::move(recording))) {}

  Executor& executor() const { return executor_; }
  const std::shared_ptr<const Recording>& recording() const { return recording_; }

 private:
  Executor& executor_;
  std::shared_ptr<const Recording> recording_;  // shared with launches that are still queued
};

class HostStream : public Stream {
 public:
  void copy(void* to, const void* from, std::size_t bytes) final;
  void fill(void* to, std::uint8_t value, std::size_t bytes) final;
  using Stream::launch;
  void launch(const KernelCall& call) final;
  void launch(const Graph& graph) final;
  void record(Event& event) final;
  void wait(Event& event) final;
  void call(void (*callback)(void*), void* argument) final;
  bool idle() final;
  void synchronize() final;
  void begin_capture() final;
  std::unique_ptr<Graph> end_capture() final;

  // The end of the work that is queued now. Any thread.
  virtual Point end() const = 0;

 protected:
  explicit HostStream(Executor& executor) : executor_(executor) {}

  virtual void enqueue(Operation operation) = 0;

 private:
  void submit(Operation operation);
  void refuse_in_capture(const char* what) const;
  HostEvent& own(Event& event) const;

  Executor& executor_;
  std::unique_ptr<Recording> capture_;
};

}  // namespace moetap::host
