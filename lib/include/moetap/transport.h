// The interface that both transports implement, one class for each end.
#pragma once

#include <moetap/error.h>
#include <moetap/lease.h>
#include <moetap/shape.h>
#include <moetap/step.h>
#include <moetap/types.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace moetap {

struct RouteSink;  // of a router that captures its own picks: <moetap/route_sink.h>
class Stream;      // a device's queue of ordered work: <moetap/device.h>

using Milliseconds = std::chrono::milliseconds;

// Steps that a worker closed without their rows, which are missing: it gave them up, or the
// scheduler did not take steps in and the worker was told not to wait for it (OnFull::drop).
struct DroppedSteps {
  std::uint64_t count = 0;
  Step last = 0;               // of them; 0: none
  std::uint64_t given_up = 0;  // of them by the engine, as when its forward pass threw
};

// The worker's end. One thread at a time. The Capturer has already checked its arguments against
// shape() and max_tokens(), and calls in the order begin_step, capture …, and then one of publish,
// skip_step and give_up.
class CaptureTransport {
 public:
  virtual ~CaptureTransport() = default;

  virtual const ModelShape& shape() const = 0;
  virtual std::int64_t max_tokens() const = 0;  // rows of the device cache

  // Compares all picks of a row from now on, also on a host: CapturerOptions::compare_all_picks.
  virtual void compare_all_picks() = 0;

  // Puts the step's number, token count and first row of topk_ids (`dp_row`: where this rank's rows
  // start in a concatenated layout) into device memory, in order on `stream` and after all that the
  // steps before queued on theirs. TimeoutError if the scheduler cannot be told that the step
  // before was given up.
  virtual void begin_step(const StepInfo& step, std::int64_t dp_row, Stream& stream) = 0;

  // Queues the copy of one layer's picks into the device cache. `layer` is an index into the row.
  // `first_row` >= 0 is fixed now (and so frozen in a graph); kRowFromStep reads begin_step's
  // `dp_row` from device memory when the copy runs. Allowed while `stream` records a graph.
  static constexpr std::int64_t kRowFromStep = -1;
  virtual void capture(int layer, const TopkIds& topk_ids, std::int64_t first_row,
                       Stream& stream) = 0;

  // Two other ways for a layer's picks to come into the device cache, at addresses that are fixed
  // and so can be frozen into graphs: written by the engine's own router (its rows of topk_ids are
  // this rank's from first_row to end_row, its picks behind the first top_k are `shared_columns` of
  // shared experts), or as the output of a kernel that knows nothing of us.
  static constexpr std::int64_t kAllRows = std::numeric_limits<std::int64_t>::max();
  virtual void route_sink(int layer, std::int64_t first_row, std::int64_t end_row,
                          int shared_columns, RouteSink& sink) = 0;
  virtual RouteOutput route_output(int layer) = 0;

  // Ends the step: its rows go to the slots in `slot_mapping` (device memory, num_tokens long; may
  // be overwritten by work queued on `stream` after this call). A step whose layers were not all
  // captured, or that has an id or slot out of range or an expert twice in a row, has failed: its
  // rows are missing, the reader is told, and take_failures() has it. A TimeoutError (the scheduler
  // does not keep up) changes nothing: the call may be repeated.
  virtual void publish(const Slot* slot_mapping, Stream& stream) = 0;

  // Ends a step of which nothing is wanted.
  virtual void skip_step(Stream& stream) = 0;

  // Ends the step without its rows: it has failed, and the reader is told. `slot_mapping` as in a
  // publish() that could not be done, or null if it did not come to that. May block as publish()
  // does where that waits for a lock or a device, but never waits for room in a ring.
  virtual void give_up(const Slot* slot_mapping, Stream& stream) noexcept = 0;

  // The failures that were found since the last call, in that order, and how many there were ever.
  // More than 64 are not kept, the latest are. Allocates only if there are any.
  virtual std::vector<StepFailed> take_failures() = 0;
  virtual std::uint64_t num_failed() const = 0;

  // Returns when every step up to `step` that was published or given up is visible to the reader.
  // TimeoutError.
  virtual void finalize(Step step, Milliseconds limit) = 0;

  // See OnFull::drop.
  virtual DroppedSteps dropped() const { return {}; }

  // The engine no longer runs this request. Matters only where rows are kept per request; one that
  // finished without that a published step wanted a token of it hands over nothing.
  virtual void end_request(std::uint64_t request, RequestEnd how) = 0;
};

// The scheduler's end. One thread at a time.
class ReadTransport {
 public:
  virtual ~ReadTransport() = default;

  virtual const ModelShape& shape() const = 0;

  // The last step whose outcome is known here; takes in what has arrived, never waits.
  virtual Step last_step() = 0;

  // False once the worker has died or ended, or one of several has: what last_step() does not take
  // in after that never comes. Always true where nothing tells (the wire-compatible layout).
  virtual bool worker_alive() { return true; }

  // What the worker has dropped, as far as it is known here (see OnFull).
  virtual DroppedSteps dropped() { return {}; }

  // Returns when last_step() >= step. StepFailed if that very step failed; TimeoutError; OwnedError
  // is never thrown here: a worker that died is a TimeoutError that says so. A step of which
  // nothing was wanted never comes, a later one stands for it: wait for steps that one's own rows
  // are of.
  virtual void wait_for(Step step, Milliseconds limit) = 0;
};

// Rows by slot.
class SlotReadTransport : public ReadTransport {
 public:
  virtual std::int64_t num_slots() const = 0;

  // Gathers rows[i] = the row of slots[i] with its state. `windows` has one element for all or one
  // a slot. rows: slots.size() * shape().row_bytes() bytes of narrow ids. The bytes of a row that
  // is not present are 0xFF. RangeError for a slot outside [0, num_slots), ArgumentError for sizes
  // that do not fit, StateError for a window of several steps whose last has not arrived yet (it
  // may rewrite a row that still looks present: wait_for it first), all before anything is written.
  virtual void read(std::span<const Slot> slots, std::span<const StepWindow> windows,
                    std::span<std::byte> rows, std::span<RowState> states) = 0;

  // written[i] = the step that wrote the row of slots[i]; 0 if that is missing, or where rows carry
  // no stamps. What it says may change with the next call; a read() with that one step as its
  // window shows whether it has. Sizes and errors as read().
  virtual void stamps(std::span<const Slot> /*slots*/, std::span<Step> written) {
    std::ranges::fill(written, Step{0});
  }

  // As read(), but leaves the rows where they are: rows[i] points at the row of slots[i], or is
  // null if that is not present. While the lease is out nothing changes there, so that no step is
  // taken in and a put() is a StateError. Null from transports whose rows others write, which is
  // to say: read() them.
  virtual std::optional<Lease> lend(std::span<const Slot> /*slots*/,
                                    std::span<const StepWindow> /*windows*/,
                                    std::span<const std::byte*> /*rows*/,
                                    std::span<RowState> /*states*/, const std::string& /*holder*/) {
    return std::nullopt;
  }

  // Makes rows[i] the row of slots[i], as if it had been written in `step`: a number of its own,
  // that no forward pass has, so that a reader with an older window cannot take the row for
  // another. One whose slot is given as ~slot becomes missing. A slot that has a row of a later
  // step keeps that (not where there are no stamps), so that a late put does no harm. RangeError
  // for a slot outside [0, num_slots), ArgumentError for a slot that comes twice, step 0 or sizes
  // that do not fit, all before anything is changed. The rows' bytes are not looked at:
  // Reader::put() does.
  virtual void put(Step step, std::span<const Slot> slots, std::span<const std::byte> rows) = 0;
};

// Rows by request, from a worker that keeps them per request and hands them over at the end.
class RequestReadTransport : public ReadTransport {
 public:
  // Moves out the rows of a finished request's positions [range.start, range.end); positions that
  // the worker never computed (prefix hits) are missing. Waits until the request has arrived.
  // TimeoutError, also for a request of which no published step wanted a token: it hands over
  // nothing. One that was taken already is a StateError.
  virtual void take(std::uint64_t request, TokenRange range, std::span<std::byte> rows,
                    std::span<RowState> states, Milliseconds limit) = 0;
};

}  // namespace moetap
