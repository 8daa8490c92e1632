#include "gpu/device/host/stream.h"

#include <moetap/error.h>

#include <fmt/format.h>

#include <utility>

namespace moetap::host {

Point HostEvent::point() const {
  const std::lock_guard lock(mutex_);
  return point_;
}

void HostEvent::move_to(Point point) {
  const std::lock_guard lock(mutex_);
  std::swap(point_, point);
}

void HostStream::copy(void* to, const void* from, std::size_t bytes) {
  const Memory::Kind source = executor_.memory().require("copy from", from, bytes);
  const Memory::Kind target = executor_.memory().require("copy to", to, bytes);
  if (source == Memory::Kind::host && target == Memory::Kind::host) {
    throw ArgumentError(
        fmt::format("copy of {} bytes from pinned host memory to pinned host memory: CUDA would "
                    "not queue it but "
                    "block; copy it on the host",
                    bytes));
  }
  submit(Copy{to, from, bytes});
}

void HostStream::fill(void* to, std::uint8_t value, std::size_t bytes) {
  executor_.memory().require("fill", to, bytes);
  submit(Fill{to, bytes, value});
}

void HostStream::launch(const KernelCall& call) {
  if (call.blocks() < 0) {
    throw ArgumentError(fmt::format("launch of {} with {} blocks: need 0 or more",
                                    call.entry().name, call.blocks()));
  }
  submit(call);
}

void HostStream::launch(const Graph& graph) {
  const auto* own_graph = dynamic_cast<const HostGraph*>(&graph);
  if (own_graph == nullptr || &own_graph->executor() != &executor_) {
    throw ArgumentError("launch of a graph that another device recorded: record it on this one");
  }
  if (capture_ == nullptr) return submit(Replay{own_graph->recording()});
  for (const Operation& operation : own_graph->recording()->operations) submit(operation);
}

void HostStream::record(Event& event) {
  refuse_in_callback("record()");
  refuse_in_capture("record()");
  own(event).move_to(end());
}

void HostStream::wait(Event& event) {
  refuse_in_callback("wait()");
  refuse_in_capture("wait()");
  Point point = own(event).point();
  if (!point.reached()) submit(Wait{std::move(point)});
}

void HostStream::call(void (*callback)(void*), void* argument) { submit(Call{callback, argument}); }

bool HostStream::idle() {
  refuse_in_capture("idle()");
  return executor_.reached(end());
}

void HostStream::synchronize() {
  refuse_in_capture("synchronize()");
  executor_.block_until(end());
}

void HostStream::begin_capture() {
  refuse_in_capture("begin_capture()");
  capture_ = std::make_unique<Recording>();
}

std::unique_ptr<Graph> HostStream::end_capture() {
  if (capture_ == nullptr) {
    throw StateError("end_capture() without begin_capture(): begin one on this stream first");
  }
  return std::make_unique<HostGraph>(executor_, std::move(*std::exchange(capture_, nullptr)));
}

void HostStream::submit(Operation operation) {
  refuse_in_callback("queueing work");
  if (capture_ != nullptr) {
    capture_->operations.push_back(std::move(operation));
  } else {
    enqueue(std::move(operation));
  }
}

void HostStream::refuse_in_capture(const char* what) const {
  if (capture_ == nullptr) return;
  throw StateError(fmt::format(
      "{} on a stream that records a graph: end_capture() first, or use another stream", what));
}

HostEvent& HostStream::own(Event& event) const {
  auto* own_event = dynamic_cast<HostEvent*>(&event);
  if (own_event == nullptr || &own_event->executor() != &executor_) {
    throw ArgumentError("an event of another device: make it with this one's make_event()");
  }
  return *own_event;
}

}  // namespace moetap::host
