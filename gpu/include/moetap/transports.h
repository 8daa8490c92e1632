// The worker's ends of the two transports, for a Capturer.
#pragma once

#include <moetap/device.h>
#include <moetap/endpoint.h>
#include <moetap/error.h>
#include <moetap/transport.h>

#include <cstdint>
#include <memory>
#include <string>

namespace moetap {

// Blocking copy to the host, then a scatter under a file lock into shared memory.
std::unique_ptr<CaptureTransport> make_shm_transport(Device& device, const Endpoint& endpoint);

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
std::unique_ptr<CaptureTransport> make_device_transport(Device& device, const Endpoint& endpoint,
                                                        DeviceTransportOptions options = {});

// For a rank whose rows another rank publishes (Topology::publishes() is false): it captures into a
// device cache as the others do, so that their graphs are alike, and publish() only closes the
// step. Nothing leaves the device, and nobody hears of a step that went wrong here.
std::unique_ptr<CaptureTransport> make_capture_only_transport(Device& device,
                                                              const Endpoint& endpoint);

}  // namespace moetap
