
#include <algorithm>
#include <vector>

#include "ipc/internal/names.h"
#include "ipc/internal/segment.h"
#include "ipc/internal/shm_ends.h"
#include "ipc/internal/slot_lists.h"
#include "ipc/internal/system_limits.h"
#include "ipc/internal/wire_layout.h"
#include "ipc/table/lock_times.h"
#include "ipc/table/wire_lock.h"
#include "lib/internal/injection.h"

namespace moetap {
namespace {

// Either end may create the buffer, and a vLLM process makes no claim. So under the lock a buffer
// of the right size is kept, whichever process created it; otherwise it is created anew. Rows that
// another process left in it are erased, as a vLLM worker does: their tokens are not known.
// All rows are marked as missing, as the zeros of new memory may be a row of expert 0.
Segment create_or_adopt(const std::string& name, std::size_t bytes, const WireRows& rows,
                        Milliseconds timeout) {
  Segment segment = Segment::create_or_adopt(name, bytes);
  FileLock lock = lock_of(segment);
  const auto held = lock_within(lock, timeout);
  if (segment.is_adopted()) std::ranges::fill(segment.bytes(), std::byte{0});
  const std::span<WireId> ids(reinterpret_cast<WireId*>(segment.bytes().data()),
                              bytes / sizeof(WireId));
  for (std::size_t row = 0; row < ids.size(); row += rows.row_ids()) rows.erase(&ids[row]);
  return segment;
}

Segment create_or_attach(const Endpoint& endpoint, const WireRows& rows, WireLock& lock) {
  MOETAP_POINT("create lock file");
  const auto held = lock.hold(endpoint.timeout);
  MOETAP_POINT("create locked");
  return create_or_adopt(buffer_name(endpoint), wire_bytes(endpoint), rows, endpoint.timeout);
}

class WireSink : public ShmSink {
 public:
  explicit WireSink(const Endpoint& endpoint)
      : shape_(endpoint.shape),
        rows_(endpoint.shape),
        num_slots_(endpoint.num_slots),
        max_tokens_(endpoint.max_tokens),
        timeout_(endpoint.timeout),
        lock_(endpoint),
        segment_(create_or_attach(endpoint, rows_, lock_)),
        buffer_lock_(lock_of(segment_)),
        ids_(reinterpret_cast<WireId*>(segment_.bytes().data())),
        seen_(
            allocated("the writer, for a bit a slot,", static_cast<std::size_t>(num_slots_) / 8,
                      [this] { return std::vector<bool>(static_cast<std::size_t>(num_slots_)); })) {
    MOETAP_POINT("create published");
  }

  void publish(Step, std::span<const MarkedSlot> slots, std::span<const std::byte> rows) override {
    check_write({num_slots_, shape_.row_bytes()}, max_tokens_, slots, rows.size());
    check_distinct(slots);
    {
      const TimedHold held(times_.writer, [this] { return hold(); });
      write(slots, rows);
    }
    MOETAP_POINT("publish unlocked");
  }

  void fail(Step, std::span<const MarkedSlot> slots, const std::string&) override {
    const TimedHold held(times_.writer, [this] { return hold(); });
    for (const MarkedSlot marked : slots) {
      if (marked.slot() < Slot(num_slots_)) erase(marked.slot());
      MOETAP_POINT("fail invalidating");
    }
  }

  LockTimes lock_times() const override { return times_.read(); }

 private:
  WireHold hold() {
    WireHold held{lock_.hold(timeout_), {}};
    MOETAP_POINT("publish locked");
    make_again_if_gone();
    held.buffer = lock_within(buffer_lock_, timeout_);
    return held;
  }

  // The buffer has no owner that a vLLM process knows, and Python removes what one of its processes
  // had open. Readers attach to the new one.
  void make_again_if_gone() {
    if (segment_.has_name()) return;
    segment_ = create_or_adopt(segment_.name(), segment_.bytes().size(), rows_, timeout_);
    buffer_lock_ = lock_of(segment_);
    ids_ = reinterpret_cast<WireId*>(segment_.bytes().data());
  }

  void write(std::span<const MarkedSlot> slots, std::span<const std::byte> rows) {
    for (std::size_t i = 0; i < slots.size();) {
      const Slot slot = slots[i].slot();
      if (slots[i].is_missing()) {
        erase(slot);
        ++i;
        continue;
      }
      const std::size_t run = run_length(slots.subspan(i));
      const std::size_t row_bytes = shape_.row_bytes();
      rows_.put(rows.subspan(i * row_bytes, run * row_bytes), row(slot));
      MOETAP_POINT("publish copying");
      i += run;
    }
  }

  static std::size_t index(MarkedSlot marked) {
    return static_cast<std::size_t>(marked.slot().value());
  }

  // The layout has no stamps, so marks are kept here: one bit per slot.
  void check_distinct(std::span<const MarkedSlot> slots) {
    std::size_t marked = 0;
    for (; marked < slots.size(); ++marked) {
      auto seen = seen_[index(slots[marked])];
      if (seen) break;
      seen = true;
    }
    for (const MarkedSlot slot : slots.first(marked)) {
      seen_[index(slot)] = false;
    }
    if (marked < slots.size()) throw_twice(slots, marked);
  }

  WireId* row(Slot slot) const {
    return ids_ + static_cast<std::size_t>(slot.value()) * rows_.row_ids();
  }
  void erase(Slot slot) { rows_.erase(row(slot)); }

  ModelShape shape_;
  WireRows rows_;
  std::int64_t num_slots_;
  std::int64_t max_tokens_;
  Milliseconds timeout_;
  WireLock lock_;
  Segment segment_;
  FileLock buffer_lock_;
  WireId* ids_;
  std::vector<bool> seen_;
  LongestTimes times_;  // no other process can add to it
};

}  // namespace

std::unique_ptr<ShmSink> make_wire_sink(const Endpoint& endpoint) {
  return std::make_unique<WireSink>(endpoint);
}

}  // namespace moetap
