#include <moetap/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>

#include "ipc/internal/names.h"
#include "ipc/internal/native_layout.h"
#include "ipc/internal/segment.h"
#include "ipc/internal/shm_ends.h"
#include "lib/internal/injection.h"

namespace moetap {
namespace {

class NativeSink : public ShmSink {
 public:
  explicit NativeSink(const Endpoint& endpoint)
      : timeout_(endpoint.timeout),
        segment_(
            Segment::create(buffer_name(endpoint), native_bytes(endpoint), endpoint.huge_pages)),
        control_(new (segment_.bytes().data()) ShmControl),
        buffer_(segment_.bytes().subspan(sizeof(ShmControl)), endpoint.num_slots,
                endpoint.shape.row_bytes(), endpoint.max_tokens),
        lock_(lock_of(segment_)) {
    control_->head.publish(endpoint, kShmMagic, kShmVersion);
    MOETAP_POINT("create published");
  }

  void publish(Step step, std::span<const MarkedSlot> slots,
               std::span<const std::byte> rows) override {
    {
      const TimedHold held(control_->lock_times.writer, [this] { return hold(); });
      segment_.require_name();
      buffer_.scatter(step, slots, rows);
      buffer_.set_last_step(step);
    }
    announce(step);
  }

  void fail(Step step, std::span<const MarkedSlot> slots, const std::string& reason) override {
    {
      const TimedHold held(control_->lock_times.writer, [this] { return hold(); });
      if (!buffer_.invalidate(slots) &&
          !MOETAP_OFF("H37 rows from before a step whose slots are not known")) {
        buffer_.lose(step, step);
      }
      note(step, reason);
      buffer_.set_last_step(step);
    }
    announce(step);
  }

  LockTimes lock_times() const override { return control_->lock_times.read(); }

 private:
  std::unique_lock<FileLock> hold() {
    std::unique_lock<FileLock> held(lock_, std::try_to_lock);
    if (!held) held = wait_for_lock();
    MOETAP_POINT("publish locked");
    return held;
  }

  std::unique_lock<FileLock> wait_for_lock() {
    control_->writer_waits.store(1, std::memory_order_relaxed);
    MOETAP_POINT("publish waits");
    struct Done {
      std::atomic<std::uint32_t>& waits;
      ~Done() { waits.store(0, std::memory_order_relaxed); }
    } const done{control_->writer_waits};
    try {
      return lock_within(lock_, timeout_);
    } catch (const TimeoutError& error) {
      const auto us = [](std::chrono::nanoseconds time) { return time.count() / 1000; };
      const LockTimes times = lock_times();
      throw TimeoutError(fmt::format(
          "{}. Until now readers held it for at most {} us, and this worker waited at most {} us",
          error.what(), us(times.reader_hold), us(times.writer_wait)));
    }
  }

  void note(Step step, const std::string& reason) {
    const std::uint64_t number = control_->num_failed.load(std::memory_order_relaxed);
    FailedStep& entry = control_->failed[number % ShmControl::kFailures];
    entry.step.store(0, std::memory_order_relaxed);
    // A process that dies here leaves no text under the entry's old step.
    std::atomic_signal_fence(std::memory_order_seq_cst);
    MOETAP_POINT("fail noting");
    const std::size_t length = std::min(reason.size(), sizeof entry.reason - 1);
    std::memcpy(entry.reason, reason.data(), length);
    entry.reason[length] = '\0';
    entry.step.store(step, std::memory_order_release);
    auto& place = control_->failed_steps[number % ShmControl::kFailedSteps];
    if (number >= ShmControl::kFailedSteps) control_->forgotten.store(place.load());
    place.store(step, std::memory_order_release);
    control_->num_failed.store(number + 1, std::memory_order_release);
    MOETAP_POINT("fail noted");
  }

  // After the lock is released, so that a woken reader finds it free.
  void announce(Step step) {
    MOETAP_POINT("publish unlocked");
    control_->last_step.store(step, std::memory_order_release);
    MOETAP_POINT("publish announced");
    wake(control_->wake);
  }

  Milliseconds timeout_;
  Segment segment_;
  ShmControl* control_;
  SlotBuffer buffer_;
  FileLock lock_;
};

}  // namespace

std::unique_ptr<ShmSink> make_native_sink(const Endpoint& endpoint) {
  return std::make_unique<NativeSink>(endpoint);
}

}  // namespace moetap
