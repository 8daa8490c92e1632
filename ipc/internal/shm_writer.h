// The host half of the `shm` transport's worker end.
#pragma once

#include <moetap/endpoint.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace moetap {

// The longest that the buffer's lock was waited for and held since the buffer was made (H24). A
// reader that has it at this moment counts when it gives it back.
struct LockTimes {
  std::chrono::nanoseconds writer_wait{0};
  std::chrono::nanoseconds writer_hold{0};
  std::chrono::nanoseconds reader_wait{0};  // of all readers; wire layout: not known
  std::chrono::nanoseconds reader_hold{0};
};

// Of the process that makes it: in a forked child publish() and fail() are a StateError.
class ShmWriter {
 public:
  // Creates the buffer and becomes its owner; see Segment::create.
  explicit ShmWriter(const Endpoint& endpoint);
  ~ShmWriter();

  // Scatters narrow rows by slot under the lock and makes `step` visible. Ids are not looked at:
  // rows are a device's, which has (H20). A slot stored as ~slot is
  // marked missing. RangeError for a slot outside the buffer, ArgumentError for a slot that comes
  // twice or a step that is not above the last, MismatchError for a stamp that another process
  // wrote over; nothing is changed then. TimeoutError if the lock
  // cannot be had within endpoint.limit, with the process that holds it and lock_times().
  void publish(Step step, std::span<const Slot> slots, std::span<const std::byte> rows);

  // Makes it visible that `step` failed; the rows of those of `slots` that exist become missing. If
  // one does not exist or comes twice, the step has written to slots that nobody knows: then all
  // rows of earlier steps are missing in windows that include it (not in the wire layout, which has
  // no steps).
  void fail(Step step, std::span<const Slot> slots, const std::string& reason);

  LockTimes lock_times() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace moetap
