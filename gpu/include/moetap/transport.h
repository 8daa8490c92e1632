// The worker's end of a transport, used by a Capturer: it takes a step's rows off the device.
#pragma once

#include <moetap/drafts.h>
#include <moetap/endpoint.h>
#include <moetap/error.h>
#include <moetap/export.h>
#include <moetap/step.h>
#include <moetap/types.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace moetap {

class Device;
class Stream;
class Snapshot;      // a step that is ready to be delivered
class StepFailures;  // failures that were found and not yet taken

// The base class of all transports. A transport implements deliver() and finalize(), and overrides
// other functions where it needs them. One thread at a time: the Capturer's, which has checked the
// arguments.
class MOETAP_API Transport {
 public:
  virtual ~Transport();
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  Device& device() const { return device_; }
  const Endpoint& endpoint() const { return endpoint_; }

  // A step begins. A transport may refuse it by an exception, before anything is changed. It keeps
  // what it needs of StepInfo and a Snapshot does not have. TimeoutError if the scheduler cannot be
  // told that the previous step was given up.
  virtual void begin(const StepInfo& /*step*/) {}

  // Delivers the step, whose captures are queued on `stream`: makes its rows visible at the slots
  // of its slot mapping. The slot mapping is device memory; work queued on `stream` after this call
  // may overwrite it. A step fails if a layer was not captured, an id or slot is out of range, or a
  // row has an expert twice in a layer. The rows of a failed step are missing, the reader is told,
  // and take_failures() returns it. After a TimeoutError (the scheduler does not keep up) nothing
  // has changed, and the call may be repeated.
  virtual void deliver(const Snapshot& step, Stream& stream) = 0;

  // Ends the step without its rows: it has failed, and the reader is told. `why` says why, for
  // take_failures(). The slot mapping is null if there was no deliver(). Like deliver() it may
  // block for a lock or the device, but it never waits for room in a ring.
  virtual void give_up(const Snapshot& step, std::string_view why, Stream& stream) noexcept = 0;

  // Returns when the reader can see every step up to `step` that was delivered or given up.
  // TimeoutError after `timeout`.
  virtual void finalize(Step step, Milliseconds timeout) = 0;

  // The steps that were closed without their rows; see OnFull::drop.
  virtual DroppedSteps dropped() const { return {}; }

  // The counterpart of Ledger::accept(), only relevant where rows are kept per request. The request
  // now has `num_tokens` tokens, and accepted[i] says which token of its span in `step` (0: the
  // first) was accepted for the i-th position of the span. Call it once per step with declared
  // drafts, in the order of the steps, at any time after begin_step(). Other drafts have no rows.
  // ArgumentError if an accepted token is not given or given twice, or if a token before the drafts
  // is not in its place. RangeError if the span has no such token. StateError if a token moves, but
  // the step has no declared drafts of the request. An error changes nothing.
  virtual void accept(Step /*step*/, RequestId /*request*/, std::int64_t /*num_tokens*/,
                      std::span<const std::int64_t> /*accepted*/) {}

  // The engine no longer runs this request. Only relevant where rows are kept per request. A
  // finished request of which no published step wanted a token hands over nothing.
  virtual void end_request(RequestId /*request*/, RequestEnd /*how*/) {}

  // take_failures(): the failures found since the last call, in that order. Only the latest 64 are
  // kept. Allocates only if there are any. num_failed(): the number of failures ever.
  [[nodiscard]] std::vector<StepFailed> take_failures();
  std::uint64_t num_failed() const;

 protected:
  // ArgumentError for an endpoint that is not valid.
  Transport(Device& device, const Endpoint& endpoint);

  // Any thread may add failures.
  StepFailures& failures() { return *failures_; }

 private:
  Device& device_;
  Endpoint endpoint_;
  std::unique_ptr<StepFailures> failures_;
};

// Copies each step to the host (blocking), then scatters its rows into shared memory under a file
// lock.
[[nodiscard]] MOETAP_API std::unique_ptr<Transport> make_shm_transport(Device& device,
                                                                       const Endpoint& endpoint);

// Where the device transport stores rows until they are read.
enum class HostCache : std::uint8_t {
  scheduler,    // the scheduler drains each step into a buffer by slot: make_device_reader
  per_request,  // the worker stores rows by request and position, and hands over a request's rows
                // when it finishes: make_request_reader
};

// What publish() does while there is no room for the step: the scheduler does not take in steps
// (Reader::poll), or the device has not finished its copies.
enum class OnFull : std::uint8_t {
  wait,  // waits up to endpoint.timeout, then throws TimeoutError. After a wait that ended while no
         // reader was there, it throws at once until there is one
  drop,  // never waits: closes the step without its rows, which are missing. The scheduler's
         // wait_for() of that step throws StepFailed, and both ends count it: dropped()
};

struct DeviceTransportOptions {
  HostCache host_cache = HostCache::scheduler;
  int staging_depth = 2;  // snapshots on the device that can wait for their copy
  OnFull on_full = OnFull::wait;
  // Of the engine, for HostCache::per_request. Of a chain nothing needs to be declared or accepted.
  Drafts drafts = Drafts::tree;
};

// Takes a snapshot on the step's stream. Copies it asynchronously, on a stream of its own, into a
// ring that the scheduler maps. Hands it over when the copy is done. publish() waits only while the
// ring is full, up to endpoint.timeout, or not at all: see OnFull.
[[nodiscard]] MOETAP_API std::unique_ptr<Transport> make_device_transport(
    Device& device, const Endpoint& endpoint, DeviceTransportOptions options = {});

// For a rank whose rows another rank publishes (Topology::publishes() is false). It captures into a
// device cache like the other ranks, so that all have the same graphs. publish() only closes the
// step. Nothing leaves the device, and failures of a step on this rank are not reported.
[[nodiscard]] MOETAP_API std::unique_ptr<Transport> make_capture_only_transport(
    Device& device, const Endpoint& endpoint);

}  // namespace moetap
