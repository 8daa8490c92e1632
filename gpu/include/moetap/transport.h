// The worker's end of a transport, for a Capturer: how a step leaves the device.
#pragma once

#include <moetap/endpoint.h>
#include <moetap/error.h>
#include <moetap/step.h>
#include <moetap/types.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace moetap {

class Device;
class Stream;
class Snapshot;      // a step that is ready to be taken out
class StepFailures;  // that were found and not taken yet

// One class for each transport, which implements deliver() and finalize(), and what else concerns
// it. One thread at a time: the Capturer's, which has checked the arguments.
class Transport {
 public:
  virtual ~Transport();
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  Device& device() const { return device_; }
  const Endpoint& endpoint() const { return endpoint_; }

  // A step begins. May refuse it, before anything is changed; keeps of it what a Snapshot does not
  // have. TimeoutError if the scheduler cannot be told that the step before was given up.
  virtual void begin(const StepInfo& /*step*/) {}

  // Takes out the step, whose captures are queued on `stream`: makes its rows visible at the slots
  // of its slot mapping (device memory, which may be overwritten by work queued on `stream` after
  // this call). A step whose layers were not all captured, or that has an id or slot out of range
  // or an expert twice in a row, has failed: its rows are missing, the reader is told, and
  // take_failures() has it. After a TimeoutError (the scheduler does not keep up) nothing has
  // changed, and the call may be repeated.
  virtual void deliver(const Snapshot& step, Stream& stream) = 0;

  // The step ends without its rows: it has failed, and the reader is told. Its slot mapping is null
  // if it did not come to a deliver(). May block as deliver() does where that waits for a lock or a
  // device, but never waits for room in a ring.
  virtual void give_up(const Snapshot& step, Stream& stream) noexcept = 0;

  // Returns when every step up to `step` that was delivered or given up is visible to the reader.
  // TimeoutError.
  virtual void finalize(Step step, Milliseconds limit) = 0;

  // See OnFull::drop.
  virtual DroppedSteps dropped() const { return {}; }

  // The engine no longer runs this request. Matters only where rows are kept per request; one that
  // finished without that a published step wanted a token of it hands over nothing.
  virtual void end_request(std::uint64_t /*request*/, RequestEnd /*how*/) {}

  // The failures that were found since the last call, in that order, and how many there were ever.
  // More than 64 are not kept, the latest are. Allocates only if there are any.
  std::vector<StepFailed> take_failures();
  std::uint64_t num_failed() const;

 protected:
  // ArgumentError for an endpoint that is none.
  Transport(Device& device, const Endpoint& endpoint);

  // Any thread may add to them.
  StepFailures& failures() { return *failures_; }

 private:
  Device& device_;
  Endpoint endpoint_;
  std::unique_ptr<StepFailures> failures_;
};

// Blocking copy to the host, then a scatter under a file lock into shared memory.
std::unique_ptr<Transport> make_shm_transport(Device& device, const Endpoint& endpoint);

// Where the device transport keeps rows until they are read.
enum class HostCache : std::uint8_t {
  scheduler,    // the scheduler drains each step into a buffer by slot: make_device_reader
  per_request,  // the worker keeps rows by request and position, and hands a request's rows over
                // when it finishes: make_request_reader
};

// What publish() does while there is no room for the step, since the scheduler does not take steps
// in (Reader::poll) or the device is behind with its copies.
enum class OnFull : std::uint8_t {
  wait,  // up to endpoint.limit, then a TimeoutError
  drop,  // never waits: closes the step without its rows. They are missing for the scheduler, whose
         // wait_for() of that step is a StepFailed, and both ends count them: dropped()
};

struct DeviceTransportOptions {
  HostCache host_cache = HostCache::scheduler;
  int staging_depth = 2;  // snapshots on the device that may be waiting for their copy
  OnFull on_full = OnFull::wait;
};

// Snapshot on the step's stream, asynchronous copy on a stream of its own into a ring that the
// scheduler maps, hand-over when the copy is done. publish() waits only while the ring is full, up
// to endpoint.limit, or not at all: see OnFull.
std::unique_ptr<Transport> make_device_transport(Device& device, const Endpoint& endpoint,
                                                 DeviceTransportOptions options = {});

// For a rank whose rows another rank publishes (Topology::publishes() is false): it captures into a
// device cache as the others do, so that their graphs are alike, and publish() only closes the
// step. Nothing leaves the device, and nobody hears of a step that went wrong here.
std::unique_ptr<Transport> make_capture_only_transport(Device& device, const Endpoint& endpoint);

}  // namespace moetap
