// The scheduler's end of a transport: what a Reader reads from.
#pragma once

#include <moetap/endpoint.h>
#include <moetap/error.h>
#include <moetap/lease.h>
#include <moetap/shape.h>
#include <moetap/step.h>
#include <moetap/types.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace moetap {

// The scheduler's end. One thread at a time.
class ReadTransport {
 public:
  virtual ~ReadTransport() = default;

  virtual const ModelShape& shape() const = 0;

  // The last step whose outcome is known here; takes in what has arrived, never waits.
  virtual Step poll() = 0;

  // False once the worker has died or ended, or one of several has: what poll() does not take
  // in after that never comes. Always true where nothing tells (the wire-compatible layout).
  virtual bool worker_alive() { return true; }

  // What the worker has dropped, as far as it is known here (see OnFull).
  virtual DroppedSteps dropped() { return {}; }

  // Returns when poll() >= step. StepFailed if that very step failed; TimeoutError; OwnedError
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

// The scheduler's end of each transport, for a Reader or RequestReader. They wait up to
// endpoint.limit for the worker's end to exist (TimeoutError with the name it waited for) and throw
// MismatchError, with both, if the worker's shape or sizes are others.

// Gathers under the file lock from the worker's buffer, a piece at a time. TimeoutError if the lock
// cannot be had within endpoint.limit; `rows` and `states` are unspecified then. Wire layout: rows
// are `unverified` (their bytes are given), or `missing` if all ids are -1; any other id outside
// the model is a RangeError; wait_for is a StateError, since that layout has no step numbers.
std::unique_ptr<SlotReadTransport> make_shm_reader(const Endpoint& endpoint);

// Drains the worker's ring into a slot buffer of its own; reads take no lock. One a worker: a
// second is an OwnedError. wait_for() takes in steps up to the one it waits for, poll() all
// that have come, read() none: rows change in those two calls only, and the worker has to wait once
// the ring is full. A record is checked again here, and one that is bad is a failed step.
// wait_for() of a failed step throws as long as it is among the latest 64 that failed. One that
// takes over from a reader that is gone has none of the rows that came before: they are missing.
// MismatchError from any of the calls if the shared memory was overwritten.
std::unique_ptr<SlotReadTransport> make_device_reader(const Endpoint& endpoint);

// What all ranks of topology.dp_rank publish, as rows of engine.shape: `make` is one of the two
// above, called for each of endpoints_of(engine, topology); see <moetap/stages.h> for how they read
// as one. One endpoint is read as it is.
using SlotReaderMaker = std::unique_ptr<SlotReadTransport> (*)(const Endpoint&);
std::unique_ptr<SlotReadTransport> make_joined_reader(const Endpoint& engine,
                                                      const Topology& topology,
                                                      SlotReaderMaker make);

// For HostCache::per_request; as above for steps. Keeps each finished request until it is taken, so
// take every one (an empty range throws its rows away). Request ids are not used again: of the
// latest 4096 that were taken, taking one again is a StateError, of older ones a TimeoutError. So
// is take() of a request that was never scheduled at the worker: nothing of it will come.
std::unique_ptr<RequestReadTransport> make_request_reader(const Endpoint& endpoint);

}  // namespace moetap
