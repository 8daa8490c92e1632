// The scheduler's end of a transport, which a Reader reads from.
#pragma once

#include <moetap/endpoint.h>
#include <moetap/error.h>
#include <moetap/export.h>
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
class MOETAP_API ReadTransport {
 public:
  virtual ~ReadTransport() = default;

  virtual const ModelShape& shape() const = 0;

  // Takes in the steps that have arrived, and returns the last step whose outcome is known. Never
  // waits.
  virtual Step poll() = 0;

  // False once the worker, or one of several, has died or ended. What the next poll() does not take
  // in will then never arrive. Always true where this cannot be known (the wire-compatible layout).
  virtual bool worker_alive() { return true; }

  // The steps that the worker is known to have dropped (see OnFull).
  virtual DroppedSteps dropped() { return {}; }

  // Returns when poll() >= step. StepFailed if this step failed. TimeoutError after `timeout`; if
  // the worker died, its message says so. A step of which no rows were wanted never arrives, and
  // only a later one ends the wait. So wait for steps that computed rows you want.
  virtual void wait_for(Step step, Milliseconds timeout) = 0;
};

// Rows by slot.
class MOETAP_API SlotReadTransport : public ReadTransport {
 public:
  virtual std::int64_t num_slots() const = 0;

  // Gathers the row of slots[i] into rows[i], and its state into states[i]. `windows` has one
  // element for all slots, or one for each slot. `rows` has slots.size() * shape().row_bytes()
  // bytes. The bytes of a row that is not present are 0xFF. Errors are thrown before anything is
  // written. RangeError for a slot outside [0, num_slots), ArgumentError for sizes that do not
  // match. StateError for a window of several steps whose last has not arrived: it could still
  // overwrite a row that looks present, so call wait_for() first.
  virtual void read(std::span<const Slot> slots, std::span<const StepWindow> windows,
                    std::span<std::byte> rows, std::span<RowState> states) = 0;

  // written[i] = the step that wrote the row of slots[i]; 0 if the row is missing, or where rows
  // have no stamps. The answer may change with the next call. A read() with this one step as its
  // window shows whether it did. Sizes and errors as read().
  virtual void stamps(std::span<const Slot> /*slots*/, std::span<Step> written) {
    std::ranges::fill(written, Step());
  }

  // As read(), but without a copy: rows[i] points at the row of slots[i], or is null if the row is
  // not present. While the lease is out the rows do not change: no step is taken in, and put() is a
  // StateError that names `holder`. Returns nullopt if another process writes the rows; use read()
  // then.
  [[nodiscard]] virtual std::optional<Lease> lend(std::span<const Slot> /*slots*/,
                                                  std::span<const StepWindow> /*windows*/,
                                                  std::span<const std::byte*> /*rows*/,
                                                  std::span<RowState> /*states*/,
                                                  const std::string& /*holder*/) {
    return std::nullopt;
  }

  // Stores rows[i] as the row of slots[i], with the stamp `step`. `step` is a number of its own,
  // which no forward pass has, so that an older window does not accept the row. `states` has the
  // rows' states as read, or is empty: all are present. A row whose state is not present becomes
  // missing, whatever its bytes; an unverified one is stored. A slot with a row of a later step
  // keeps that row (except where there are no stamps), so that a late put does no harm. Errors are
  // thrown before anything is changed. RangeError for a slot outside [0, num_slots). ArgumentError
  // for a slot that is given twice, for step 0, and for sizes that do not match. The rows' bytes
  // are not checked here, but in Reader::put().
  virtual void put(Step step, std::span<const Slot> slots, std::span<const std::byte> rows,
                   std::span<const RowState> states) = 0;
};

// Rows by request, from a worker that keeps them per request and hands them over at the end.
class MOETAP_API RequestReadTransport : public ReadTransport {
 public:
  // Moves out the rows of a finished request at positions [range.start, range.end). Positions that
  // the worker never computed (prefix hits) are missing. Waits up to `timeout` for the request to
  // arrive. TimeoutError also for a request of which no published step wanted a token: its rows are
  // never handed over. StateError for a request that was already taken.
  //
  // Give the end of the request's rows as range.end, one below its number of tokens. If it lies
  // within the last computed span, tokens of that span were rejected. Unless the worker knows its
  // drafts (RequestSpan::num_drafts, Drafts::chain), only the span's first token then has a row.
  virtual void take(RequestId request, TokenRange range, std::span<std::byte> rows,
                    std::span<RowState> states, Milliseconds timeout) = 0;
};

// The scheduler's end of each transport, for a Reader or RequestReader. Each function waits up to
// endpoint.timeout for the worker's end to exist: TimeoutError with the name it waited for.
// MismatchError with both values if the worker's shape or sizes differ.

// Gathers rows from the worker's buffer under the file lock, in bounded pieces. TimeoutError if the
// lock is not free within endpoint.timeout, MismatchError if the buffer's file was removed or
// replaced while its worker lives; `rows` and `states` are unspecified then.
//
// In the wire layout, rows are `unverified` (with their bytes), or `missing` if all their ids are
// -1. Any other id that the model does not have is a RangeError. wait_for() is a StateError, as
// that layout has no step numbers. A lock file that was removed is made again. If the buffer was
// replaced (its worker restarted), the reader attaches to the new one. If it was only removed,
// calls are a MismatchError until a worker makes it again.
[[nodiscard]] MOETAP_API std::unique_ptr<SlotReadTransport> make_shm_reader(
    const Endpoint& endpoint);

// Drains the worker's ring into a slot buffer of its own; reads take no lock. One per worker: a
// second is an OwnedError. wait_for() takes in steps up to the requested one, poll() all that have
// arrived, read() none. So rows change only in wait_for(), poll() and put(). A worker whose ring is
// full has to wait for them.
//
// Each record is checked again here, and a bad one is a failed step. wait_for() throws for a failed
// step while it is among the latest 64 failures. A reader that takes over from an earlier one has
// none of the rows that came before: they are missing. MismatchError from any of the calls if the
// shared memory was overwritten.
[[nodiscard]] MOETAP_API std::unique_ptr<SlotReadTransport> make_device_reader(
    const Endpoint& endpoint);

// Joins all ranks that publish for topology.dp_rank, with rows of engine.shape. `make` is one of
// the two functions above. It is called for each of endpoints_of(engine, topology). See
// <moetap/stages.h> for how joined rows are read. A single endpoint is read as it is.
using SlotReaderMaker = std::unique_ptr<SlotReadTransport> (*)(const Endpoint&);
[[nodiscard]] MOETAP_API std::unique_ptr<SlotReadTransport> make_joined_reader(
    const Endpoint& engine, const Topology& topology, SlotReaderMaker make);

// For HostCache::per_request; steps are as in make_device_reader(). Keeps each finished request
// until it is taken, so take every one; an empty range discards its rows. Request ids must not be
// reused. Taking a request twice is a StateError if it is among the latest 4096 that were taken,
// otherwise a TimeoutError. A request that was never scheduled at the worker is a TimeoutError too.
[[nodiscard]] MOETAP_API std::unique_ptr<RequestReadTransport> make_request_reader(
    const Endpoint& endpoint);

}  // namespace moetap
