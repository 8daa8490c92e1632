// The scheduler's ends of the two transports, for a Reader or RequestReader. Each waits up to
// endpoint.limit for the worker's end to exist (TimeoutError with the name it waited for) and
// throws MismatchError, with both, if the worker's shape or sizes are others.
#pragma once

#include <moetap/endpoint.h>
#include <moetap/error.h>
#include <moetap/read_transport.h>

#include <memory>

namespace moetap {

// Gathers under the file lock from the worker's buffer, a piece at a time. TimeoutError if the lock
// cannot be had within endpoint.limit; `rows` and `states` are unspecified then. Wire layout: rows
// are `unverified` (their bytes are given), or `missing` if all ids are -1; any other id outside
// the model is a RangeError; wait_for is a StateError, since that layout has no step numbers.
std::unique_ptr<SlotReadTransport> make_shm_reader(const Endpoint& endpoint);

// Drains the worker's ring into a slot buffer of its own; reads take no lock. One a worker: a
// second is an OwnedError. wait_for() takes in steps up to the one it waits for, last_step() all
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
