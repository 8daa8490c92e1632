#include "gpu/device/host/thread_stream.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "ipc/internal/system_limits.h"

namespace moetap::host {

void StreamList::add(const HostStream& stream) {
  const std::lock_guard lock(mutex_);
  streams_.push_back(&stream);
}

void StreamList::remove(const HostStream& stream) {
  const std::lock_guard lock(mutex_);
  std::erase(streams_, &stream);
}

std::vector<Point> StreamList::ends() const {
  const std::lock_guard lock(mutex_);
  std::vector<Point> points;
  points.reserve(streams_.size());
  for (const HostStream* stream : streams_) points.push_back(stream->end());
  return points;
}

ThreadStream::ThreadStream(Executor& executor, StreamList& streams)
    : HostStream(executor),
      streams_(streams),
      ring_(std::make_unique<std::array<Operation, kDepth>>()),
      thread_(start_thread("a stream of the host device", [this] { run_all(); })) {
  streams_.add(*this);
}

ThreadStream::~ThreadStream() {
  enqueue(Stop{});
  thread_.join();
  streams_.remove(*this);
}

void ThreadStream::enqueue(Operation operation) {
  const std::uint64_t tail = tail_.load(std::memory_order_relaxed);
  if (tail - timeline_->done() >= kDepth) timeline_->wait(tail + 1 - kDepth);
  (*ring_)[tail % kDepth] = std::move(operation);
  tail_.store(tail + 1, std::memory_order_release);
  wake(queued_);
}

void ThreadStream::run_all() noexcept {
  for (bool stop = false; !stop;) {
    const std::uint64_t head = timeline_->done();
    (void)wait_until(
        queued_, std::chrono::steady_clock::time_point::max(),
        [&] { return tail_.load(std::memory_order_acquire) != head; }, kDeviceSpin);
    const Operation& operation = (*ring_)[head % kDepth];
    run(operation);
    stop = std::holds_alternative<Stop>(operation);
    timeline_->advance();
  }
}

}  // namespace moetap::host
