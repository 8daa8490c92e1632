// A stream that is a thread with a ring of operations.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "gpu/device/host/stream.h"

namespace moetap::host {

// The living streams, so that freeing memory can wait for all of them.
class StreamList {
 public:
  void add(const HostStream& stream);
  void remove(const HostStream& stream);
  std::vector<Point> ends() const;

 private:
  mutable std::mutex mutex_;
  std::vector<const HostStream*> streams_;
};

class ThreadStream final : public HostStream {
 public:
  // The number of operations that can be queued. As on a GPU, queueing more blocks until there is
  // room. Enough for some steps of any model (two or three operations per layer).
  static constexpr std::uint64_t kDepth = 1024;

  ThreadStream(Executor& executor, StreamList& streams);
  ~ThreadStream() override;  // after all its work

  Point end() const override { return {timeline_, tail_.load(std::memory_order_acquire)}; }

 private:
  void enqueue(Operation operation) override;
  void run_all() noexcept;

  StreamList& streams_;
  std::shared_ptr<Timeline> timeline_ = std::make_shared<Timeline>();
  std::unique_ptr<std::array<Operation, kDepth>> ring_;

  // The owner writes these two for each operation, and the stream's thread polls them. They share a
  // cache line, apart from members that only one side uses.
  alignas(64) std::atomic<std::uint64_t> tail_{0};
  WakeWord queued_;

  alignas(64) std::thread thread_;  // last: starts when everything else is there
};

}  // namespace moetap::host
