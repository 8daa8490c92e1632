#include <moetap/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include "ipc/internal/names.h"
#include "ipc/internal/native_layout.h"
#include "ipc/internal/segment.h"
#include "ipc/internal/shm_ends.h"
#include "ipc/ring/step_outcomes.h"
#include "ipc/system/fork_guard.h"
#include "lib/internal/injection.h"
#include "lib/internal/number_format.h"
#include "lib/internal/text.h"

namespace moetap {
namespace {

using Clock = std::chrono::steady_clock;

class NativeReader : public SlotReadTransport {
 public:
  explicit NativeReader(const Endpoint& endpoint)
      : shape_(endpoint.shape),
        timeout_(endpoint.timeout),
        segment_(attach(buffer_name(endpoint), native_bytes(endpoint), endpoint, kShmMagic,
                        kShmVersion)),
        worker_(segment_.owner_pid()),
        control_(reinterpret_cast<ShmControl*>(segment_.bytes().data())),
        lock_(lock_of(segment_)),
        buffer_(segment_.bytes().subspan(sizeof(ShmControl)), endpoint.num_slots,
                shape_.row_bytes(), 0) {
    MOETAP_POINT("attach opened");
  }

  const ModelShape& shape() const override { return shape_; }
  std::int64_t num_slots() const override { return buffer_.limits().num_slots; }
  bool worker_alive() override {
    segment_.require_name();
    return segment_.owner_alive();
  }

  Step poll() override {
    const Step before = last_step_;
    if (arrived() == before && look_.is_due()) segment_.require_name();
    return last_step_;
  }

  void wait_for(Step step, Milliseconds timeout) override {
    const auto ready = [&] { return arrived() >= step; };
    const auto deadline = deadline_after(timeout);
    while (!wait_until(control_->wake, std::min(deadline, Clock::now() + kLook), ready)) {
      const bool alive = worker_alive();
      if (ready()) break;  // its last step
      if (!alive || Clock::now() >= deadline) throw_timeout(step, timeout, alive);
    }
    throw_if_failed(step);
  }

  void read(std::span<const Slot> slots, std::span<const StepWindow> windows,
            std::span<std::byte> rows, std::span<RowState> states) override {
    const std::size_t row_bytes = buffer_.limits().row_bytes;
    check_read(buffer_.limits(), slots, windows.size(), rows.size(), states.size());
    check_arrived(windows, arrived());
    const std::size_t most = rows_per_hold(row_bytes);
    for (std::size_t first = 0; first < slots.size(); first += most) {
      const std::size_t n = std::min(most, slots.size() - first);
      let_writer_go_first();
      const TimedHold held(control_->lock_times.readers,
                           [this] { return lock_shared_within(lock_, timeout_); });
      MOETAP_POINT("read locked");
      segment_.require_name();
      buffer_.gather(slots.subspan(first, n),
                     windows.size() == 1 ? windows : windows.subspan(first, n),
                     rows.subspan(first * row_bytes, n * row_bytes), states.subspan(first, n));
    }
  }

  void stamps(std::span<const Slot> slots, std::span<Step> written) override {
    check_read(buffer_.limits(), slots, 1, slots.size() * buffer_.limits().row_bytes,
               written.size());
    constexpr std::size_t kMost = kBytesPerHold / 64;  // a cache line each
    for (std::size_t first = 0; first < slots.size(); first += kMost) {
      const std::size_t n = std::min(kMost, slots.size() - first);
      let_writer_go_first();
      const auto held = lock_shared_within(lock_, timeout_);
      segment_.require_name();
      buffer_.stamps(slots.subspan(first, n), written.subspan(first, n));
    }
  }

  void put(Step step, std::span<const Slot> slots, std::span<const std::byte> rows,
           std::span<const RowState> states) override {
    const std::size_t row_bytes = buffer_.limits().row_bytes;
    maker_.require("the reader of ", segment_.name(), ", which puts rows,");
    check_put(buffer_.limits(), step, slots, rows.size(), states.size());
    const std::size_t most = rows_per_hold(row_bytes);
    for (std::size_t first = 0; first < slots.size(); first += most) {
      const std::size_t n = std::min(most, slots.size() - first);
      let_writer_go_first();
      const TimedHold held(control_->lock_times.readers,
                           [this] { return lock_within(lock_, timeout_); });
      MOETAP_POINT("put locked");
      segment_.require_name();
      buffer_.put_in(step, slots.subspan(first, n), rows.subspan(first * row_bytes, n * row_bytes),
                     states.empty() ? states : states.subspan(first, n));
    }
  }

 private:
  // The control block only says when to look; the buffer says what has arrived.
  Step arrived() {
    const Step announced = control_->last_step.load(std::memory_order_acquire);
    const Step written = buffer_.last_step();
    if (announced > written || announced < last_step_) {
      throw MismatchError(fmt::format(
          "{} announces step {}, but its rows are of steps up to {}, and {} had come: its memory "
          "was overwritten, restart both ends",
          segment_.name(), announced, written, last_step_));
    }
    return last_step_ = announced;
  }

  // flock is not fair: a reader that retakes the lock at once would keep out a polling writer.
  void let_writer_go_first() {
    if (control_->writer_waits.load(std::memory_order_relaxed) == 0) return;
    if (writer_gone_) return;
    const auto stop = Clock::now() + kWriterFirst;
    while (control_->writer_waits.load(std::memory_order_relaxed) != 0) {
      if (Clock::now() >= stop) {
        writer_gone_ = !segment_.owner_alive();  // it died while it waited
        return;
      }
      std::this_thread::yield();
    }
  }

  [[noreturn]] void throw_timeout(Step step, Milliseconds timeout, bool alive) {
    if (!alive) {
      throw TimeoutError(fmt::format(
          "step {} will not come: the worker of {}, process {}, has died; its last step was {}. "
          "Start the worker and a new reader",
          step, segment_.name(), worker_, last_step_));
    }
    throw TimeoutError(
        fmt::format("step {} of {} has not come{}; the worker, process {}, lives and its last step "
                    "was {}: see what it waits for, or raise the timeout",
                    step, segment_.name(), detail::within(timeout), worker_, last_step_));
  }

  void throw_if_failed(Step step) {
    const auto failed_now = [&](const FailedStep& entry) {
      return entry.step.load(std::memory_order_acquire) == step;
    };
    const auto* entry = std::ranges::find_if(control_->failed, failed_now);
    if (entry == std::end(control_->failed)) return throw_if_failed_long_ago(step);
    const auto held = lock_shared_within(lock_, timeout_);
    if (!failed_now(*entry)) return throw_if_failed_long_ago(step);  // a later one took its place
    throw StepFailed(step, {entry->reason, strnlen(entry->reason, sizeof entry->reason)});
  }

  // From the latest failure back to this step.
  void throw_if_failed_long_ago(Step step) const {
    constexpr std::uint64_t kMost = ShmControl::kFailedSteps;
    const std::uint64_t count = control_->num_failed.load(std::memory_order_acquire);
    for (std::uint64_t i = 1; i <= std::min(count, kMost); ++i) {
      const Step failed = control_->failed_steps[(count - i) % kMost].load();
      if (failed == step) throw StepFailed(step, std::string(kReasonForgotten));
      if (failed < step) return;
    }
    if (step <= control_->forgotten.load()) throw StepFailed(step, std::string(kOutcomeForgotten));
  }

  ModelShape shape_;
  Milliseconds timeout_;
  Segment segment_;
  Maker maker_;
  pid_t worker_;
  ShmControl* control_;
  FileLock lock_;
  SlotBuffer buffer_;
  Step last_step_ = 0;  // that this reader has seen
  NowAndThen look_;
  bool writer_gone_ = false;
};

}  // namespace

std::unique_ptr<SlotReadTransport> make_native_reader(const Endpoint& endpoint) {
  return std::make_unique<NativeReader>(endpoint);
}

}  // namespace moetap
