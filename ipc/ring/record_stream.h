// The scheduler's end of a ring, for both of its readers: takes in records in order, and records
// the outcome of every step.
#pragma once

#include <moetap/endpoint.h>
#include <moetap/lease.h>

#include <chrono>
#include <string>

#include "ipc/internal/channel.h"
#include "ipc/internal/wait.h"
#include "ipc/ring/step_outcomes.h"

namespace moetap {

class RecordStream {
 public:
  using Item = ChannelConsumer::Item;

  explicit RecordStream(const Endpoint& endpoint);

  const Endpoint& endpoint() const { return endpoint_; }
  const std::string& name() const { return name_; }
  StepOutcomes& outcomes() { return outcomes_; }
  // Whether it took over from an earlier reader, whose rows are not here.
  bool took_over() const { return channel_.took_over(); }

  bool producer_alive() const { return channel_.producer_alive(); }

  // Passes the oldest record to take_in(item) and frees it. Returns false if there is none. The
  // record stays if take_in throws. Outcomes of dropped steps are recorded either way.
  template <class TakeIn>
  bool next(TakeIn&& take_in) {
    const Item* item = look();
    if (item == nullptr) return false;
    take_in(*item);
    channel_.release();
    return true;
  }

  // See ChannelConsumer: for take_in(), before it uses any of its item.
  void require_unchanged() const { channel_.require_unchanged(); }

  // Takes records in until done(). TimeoutError that says what was waited for, and whether the
  // worker died; in that case it is thrown at once.
  template <class Done, class TakeIn>
  void until(Done&& done, Milliseconds timeout, const std::string& what, TakeIn&& take_in);

  template <class TakeIn>
  void until_step(Step step, Milliseconds timeout, TakeIn&& take_in) {
    if (outcomes_.last() < step) {
      until([&] { return outcomes_.last() >= step; }, timeout,
            "step " + std::to_string(step.value()), take_in);
    }
    outcomes_.require_success(step);
  }

  // See ChannelConsumer::show_leases.
  void show_leases(std::size_t leases, const LeaseBook::Entry* oldest) noexcept {
    if (oldest == nullptr) return channel_.show_leases(0, {}, {});
    channel_.show_leases(leases, oldest->holder, oldest->since);
  }

  // MismatchError for a record that only the other kind of reader understands.
  [[noreturn]] void throw_unexpected(const Item& item, const char* remedy) const;

 private:
  // The oldest record, or null. Records the outcomes of the steps that were dropped before it.
  const Item* look() {
    const Item* item = channel_.peek();
    outcomes_.dropped(item == nullptr ? channel_.dropped() : item->descriptor.dropped, name_);
    return item;
  }
  [[noreturn]] void throw_timeout(const std::string& what, Milliseconds timeout) const;

  const Endpoint endpoint_;
  const std::string name_;
  ChannelConsumer channel_;
  StepOutcomes outcomes_;
};

template <class Done, class TakeIn>
void RecordStream::until(Done&& done, Milliseconds timeout, const std::string& what,
                         TakeIn&& take_in) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = deadline_after(timeout);
  // Takes in what had arrived by the deadline: at most a full ring.
  for (int late = 0;;) {
    const Item* item = look();
    if (done()) return;
    if (item == nullptr) {
      const auto left = std::chrono::ceil<Milliseconds>(deadline - Clock::now());
      if (!channel_.wait(left, outcomes_.last_run())) throw_timeout(what, timeout);
      continue;
    }
    take_in(*item);
    channel_.release();
    if (done()) return;
    if (Clock::now() >= deadline && ++late > endpoint_.ring_depth) throw_timeout(what, timeout);
  }
}

}  // namespace moetap
