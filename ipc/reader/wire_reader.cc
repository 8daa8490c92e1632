#include <moetap/error.h>
#include <moetap/picks.h>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>
#include <vector>

#include "ipc/internal/names.h"
#include "ipc/internal/segment.h"
#include "ipc/internal/shm_ends.h"
#include "ipc/internal/slot_lists.h"
#include "ipc/internal/wait.h"
#include "ipc/internal/wire_layout.h"
#include "ipc/system/fork_guard.h"
#include "ipc/system/private_copy.h"
#include "ipc/table/wire_lock.h"
#include "lib/internal/injection.h"
#include "lib/internal/number_format.h"

namespace moetap {
namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void throw_other_size(const Segment& segment, const Endpoint& endpoint) {
  throw MismatchError(fmt::format(
      "{} has {} bytes, but {} slots of all {} hidden layers x top-{} as int32 "
      "take {}: give both "
      "ends the same model and number of slots (ModelShape::num_hidden_layers)",
      segment.name(), segment.bytes().size(), endpoint.num_slots,
      endpoint.shape.num_hidden_layers(), endpoint.shape.top_k(), wire_bytes(endpoint)));
}

std::optional<Segment> open_if_there(const std::string& name) {
  try {
    return Segment::open(name);
  } catch (const SystemError& error) {
    if (error.code().value() == ENOENT) return std::nullopt;
    throw;
  }
}

// The layout has no header, so only its size identifies it. A buffer of another size may be a dead
// worker's, which the next worker replaces. So it is an error at once only if its owner is alive.
Segment attach_wire(const Endpoint& endpoint) {
  const std::string name = buffer_name(endpoint);
  const std::size_t bytes = wire_bytes(endpoint);
  const auto deadline = deadline_after(endpoint.timeout);
  for (;;) {
    auto segment = open_if_there(name);
    if (segment && segment->bytes().size() == bytes) {
      MOETAP_POINT("attach opened");
      return std::move(*segment);
    }
    const bool late = Clock::now() >= deadline;
    if (segment && (late || segment->owner_alive())) {
      throw_other_size(*segment, endpoint);
    }
    if (late) {
      throw TimeoutError(
          fmt::format("waited {} ms for the worker's shared memory {}, but there is none: start "
                      "the worker first, or raise the endpoint's timeout",
                      endpoint.timeout.count(), name));
    }
    std::this_thread::sleep_until(std::min(deadline, Clock::now() + std::chrono::milliseconds(2)));
  }
}

class WireReader : public SlotReadTransport {
 public:
  explicit WireReader(const Endpoint& endpoint)
      : endpoint_(endpoint),
        rows_(endpoint.shape),
        segment_(attach_wire(endpoint)),
        buffer_lock_(lock_of(segment_)),
        lock_(endpoint),
        ids_(reinterpret_cast<WireId*>(segment_.bytes().data())),
        row_(rows_.row_ids()) {
    MOETAP_POINT("attach locked");
  }

  const ModelShape& shape() const override { return endpoint_.shape; }
  std::int64_t num_slots() const override { return endpoint_.num_slots; }
  Step poll() override { return 0; }

  void wait_for(Step step, Milliseconds) override {
    throw StateError(fmt::format(
        "step {} cannot be waited for: the wire-compatible layout has no step numbers; order the "
        "read after the step by other means, or use the native layout",
        step));
  }

  void read(std::span<const Slot> slots, std::span<const StepWindow> windows,
            std::span<std::byte> rows, std::span<RowState> states) override {
    const std::size_t row_bytes = endpoint_.shape.row_bytes();
    check_read({endpoint_.num_slots, row_bytes}, slots, windows.size(), rows.size(), states.size());
    const std::size_t most = rows_per_hold(wire_row_bytes(endpoint_.shape));
    for (std::size_t first = 0; first < slots.size();) {
      WireHold held{lock_.hold(endpoint_.timeout), {}};
      MOETAP_POINT("read locked");
      if (attach_again()) first = 0;
      held.buffer = lock_within(buffer_lock_, endpoint_.timeout);
      const std::size_t end = std::min(first + most, slots.size());
      for (std::size_t i = first; i < end; ++i) {
        states[i] = read_row(slots[i], rows.data() + i * row_bytes);
      }
      if (lock_.is_current()) first = end;  // else a writer may have had the new file's lock
    }
  }

  void put(Step step, std::span<const Slot> slots, std::span<const std::byte> rows,
           std::span<const RowState> states) override {
    const std::size_t row_bytes = endpoint_.shape.row_bytes();
    maker_.require("the reader of ", segment_.name(), ", which puts rows,");
    check_put({endpoint_.num_slots, row_bytes}, step, slots, rows.size(), states.size());
    const std::size_t most = rows_per_hold(wire_row_bytes(endpoint_.shape));
    for (std::size_t first = 0; first < slots.size();) {
      WireHold held{lock_.hold(endpoint_.timeout), {}};
      MOETAP_POINT("put locked");
      if (attach_again()) first = 0;
      held.buffer = lock_within(buffer_lock_, endpoint_.timeout);
      const std::size_t end = std::min(first + most, slots.size());
      for (std::size_t i = first; i < end; ++i) {
        if (states.empty() || has_routes(states[i])) {
          rows_.put(rows.subspan(i * row_bytes, row_bytes), at(slots[i]));
        } else {
          rows_.erase(at(slots[i]));
        }
        MOETAP_POINT("put copied");
      }
      first = end;
    }
  }

 private:
  // Under the lock. True if the name refers to another buffer than it did: a worker that restarted,
  // or whose buffer was removed, has made a new one, and no worker writes to the old one any more.
  bool attach_again() {
    if (segment_.has_name()) return false;
    auto segment = open_if_there(segment_.name());
    if (!segment) {
      throw MismatchError(fmt::format(
          "shared memory {} was removed while this reader was attached to it: its worker has "
          "ended, or see what removes files in /dev/shm. A worker makes it again when it starts, "
          "or in its next step; this reader then attaches to it",
          segment_.name()));
    }
    if (segment->bytes().size() != wire_bytes(endpoint_)) throw_other_size(*segment, endpoint_);
    segment_ = std::move(*segment);
    buffer_lock_ = lock_of(segment_);
    ids_ = reinterpret_cast<WireId*>(segment_.bytes().data());
    return true;
  }

  WireId* at(Slot slot) { return ids_ + static_cast<std::size_t>(slot.value()) * rows_.row_ids(); }

  // The process at the other end may ignore the lock.
  RowState read_row(Slot slot, std::byte* to) {
    private_copy<WireId>({at(slot), rows_.row_ids()}, row_);
    if (rows_.is_missing(row_)) {
      std::memset(to, 0xFF, endpoint_.shape.row_bytes());
      return RowState::missing;
    }
    if (!rows_.get(row_, to) || rows_.repeats(row_)) throw_bad_id(slot);
    return RowState::unverified;
  }

  [[noreturn]] void throw_bad_id(Slot slot) const {
    const auto top_k = static_cast<std::size_t>(endpoint_.shape.top_k());
    const auto is_bad = [this](WireId id) { return id < 0 || id >= endpoint_.shape.num_experts(); };
    for (const int layer : endpoint_.shape.moe_layers()) {
      const auto ids = std::span(row_).subspan(static_cast<std::size_t>(layer) * top_k, top_k);
      if (const auto bad = std::ranges::find_if(ids, is_bad); bad != ids.end()) {
        throw RangeError(fmt::format(
            "{}, slot {}, layer {}: expert id {} is outside [0, {}); does the process at the other "
            "end run the same model, and capture logical ids?",
            segment_.name(), slot, layer, *bad, endpoint_.shape.num_experts()));
      }
      const int again = repeated_pick(ids.data(), endpoint_.shape.top_k(),
                                      static_cast<std::uint32_t>(endpoint_.shape.num_experts()));
      if (again < 0 || endpoint_.shape.repeats_experts()) continue;
      throw ArgumentError(fmt::format(
          "{}, slot {}, layer {}: expert {} is picked twice, as no top-k router does; if the "
          "model repeats experts on purpose, declare it with ModelShape::with_repeated_experts()",
          segment_.name(), slot, layer, ids[static_cast<std::size_t>(again)]));
    }
    throw MismatchError(fmt::format("{}, slot {}: ids of no expert; give both ends the same model",
                                    segment_.name(), slot));
  }

  Endpoint endpoint_;
  WireRows rows_;
  Segment segment_;
  FileLock buffer_lock_;
  Maker maker_;
  WireLock lock_;
  WireId* ids_;
  std::vector<WireId> row_;
};

}  // namespace

std::unique_ptr<SlotReadTransport> make_wire_reader(const Endpoint& endpoint) {
  return std::make_unique<WireReader>(endpoint);
}

}  // namespace moetap
