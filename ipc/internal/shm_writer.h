// The host half of the `shm` transport's worker end.
#pragma once

#include <moetap/endpoint.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "lib/internal/export.h"
#include "lib/internal/marked_slot.h"

namespace moetap {

// The longest times that the buffer's lock was waited for and kept since the buffer was created
// (H24). A reader that has the lock now is counted when it releases it.
struct LockTimes {
  std::chrono::nanoseconds writer_wait{0};
  std::chrono::nanoseconds writer_hold{0};
  std::chrono::nanoseconds reader_wait{0};  // of all readers; wire layout: not known
  std::chrono::nanoseconds reader_hold{0};
};

// Belongs to the process that made it: in a forked child publish() and fail() are a StateError.
class MOETAP_INTERNAL_API ShmWriter {
 public:
  // Creates the buffer and becomes its owner; see Segment::create.
  explicit ShmWriter(const Endpoint& endpoint);
  ~ShmWriter();

  // Scatters narrow rows by slot under the lock and makes `step` visible. Ids are not checked: the
  // device has checked them (H20). The row of a marked slot becomes missing. Nothing is changed by
  // a call that throws. RangeError for a slot outside the buffer. ArgumentError for a slot that
  // comes twice, or a step that is not greater than the last. MismatchError for a stamp that
  // another process overwrote. TimeoutError if the lock is not free within endpoint.timeout, with
  // the process that has it and lock_times().
  void publish(Step step, std::span<const MarkedSlot> slots, std::span<const std::byte> rows);

  // Makes it visible that `step` failed; the rows of those of `slots` that exist become missing. If
  // one does not exist or comes twice, the slots that the step has written are not known. Then all
  // rows of earlier steps are missing in windows that include it (except in the wire layout, which
  // has no steps).
  void fail(Step step, std::span<const MarkedSlot> slots, const std::string& reason);

  LockTimes lock_times() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace moetap
