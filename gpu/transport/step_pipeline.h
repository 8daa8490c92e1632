// The device half of the `device` transport: moves a step's rows from the cache to host memory
// without blocking any thread.
#pragma once

#include <moetap/device.h>
#include <moetap/endpoint.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "gpu/internal/snapshot.h"
#include "gpu/transport/step_failures.h"
#include "ipc/internal/wait.h"

namespace moetap {

//   step's stream   … capture → wait(copied) → [copy the list →] snapshot → record(taken)
//   copy stream                                             wait(taken) → copy → record(copied) →
//   call
//
// for each staging buffer in turn: the copy never sees half a snapshot, the next snapshot into the
// buffer never overwrites what is still being copied (H15). The list has the wanted tokens, if not
// all are wanted. It is in the record's host memory. The host overwrites it only after the record
// was given to `sink`, and so after the device has read the list (H14).
class StepPipeline {
 public:
  // A step whose record has arrived in host memory.
  struct Arrival {
    Step step = 0;
    std::int64_t num_tokens = 0;  // whose rows are in the record
    std::byte* record = nullptr;
    const StepFault& fault;  // why it must not be published
  };
  // Called in step order on one of the device's threads; must not throw nor use the device.
  using Sink = std::function<void(const Arrival&)>;

  // At most `max_in_flight` steps can be published and not yet given to `sink`.
  StepPipeline(Device& device, const Endpoint& endpoint, int staging_depth, int max_in_flight,
               StepFailures& failures, Sink sink);
  StepPipeline(const StepPipeline&) = delete;
  StepPipeline& operator=(const StepPipeline&) = delete;

  // Queues the transfer of the step into `record`, pinned host memory for a StepRecord. Never
  // waits.
  void publish(const Snapshot& step, std::byte* record, Stream& stream);

  Step published() const { return published_step_; }  // the last
  // The last step for which sink() has returned, and the number of published steps for which it has
  // not.
  Step arrived() const { return arrived_.load(std::memory_order_acquire); }
  std::uint64_t in_flight() const {
    return num_published_ - num_arrived_.load(std::memory_order_acquire);
  }

  // Polls ready() until it is true, or until the timeout (false).
  template <class Ready>
  bool wait_until(Ready&& ready, Milliseconds timeout);

 private:
  struct Staging {
    Buffer record;
    Buffer tokens;                  // uint32: those that are wanted
    std::unique_ptr<Event> taken;   // recorded when the snapshot is in it
    std::unique_ptr<Event> copied;  // recorded when it was copied out
  };
  struct InFlight {
    StepPipeline* pipeline = nullptr;
    Step step = 0;
    std::int64_t num_tokens = 0;
    std::byte* record = nullptr;
    std::size_t bytes = 0;
  };

  static void arrive(void* in_flight) noexcept;

  ModelShape shape_;
  std::int64_t num_slots_;
  std::size_t list_bytes_;  // of the longest
  StepFailures& failures_;
  Sink sink_;
  Step published_step_ = 0;
  std::uint64_t num_published_ = 0;
  std::vector<Staging> staging_;
  std::vector<InFlight> in_flight_;
  Buffer lists_;  // pinned, [in_flight_.size()][list_bytes_]: sources of Staging::tokens

  std::atomic<Step> arrived_{0};
  std::atomic<std::uint64_t> num_arrived_{0};

  // Destroyed first, when everything has arrived: a stream's destructor waits for its work, and
  // does not throw.
  std::unique_ptr<Stream> copies_;
};

template <class Ready>
bool StepPipeline::wait_until(Ready&& ready, Milliseconds timeout) {
  if (ready()) return true;
  using Clock = std::chrono::steady_clock;
  const auto deadline = deadline_after(timeout);
  const auto spin = Clock::now() + kSpin;
  for (;;) {
    // A device may run its work inside calls like this one, so polling makes progress.
    copies_->idle();
    if (ready()) return true;
    const auto now = Clock::now();
    if (now >= deadline) return false;
    if (now > spin) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

}  // namespace moetap
