// The scheduler's ends of the two transports, for a Reader or RequestReader. Each waits up to
// endpoint.limit for the worker's end to exist (TimeoutError with the name it waited for) and
// throws MismatchError, with both, if the worker's shape or sizes are others.
#pragma once

#include <moetap/endpoint.h>
#include <moetap/transport.h>

#include <memory>

namespace moetap {

// Gathers under the file lock from the worker's buffer, a piece at a time. TimeoutError if the lock
// cannot be had within endpoint.limit; `rows` and `states` are unspecified then. Wire layout: rows
// are `unverified` (their bytes are given), or `missing` if all ids are -1; any other id outside
// the model is a RangeError; wait_for is a StateError, since that layout has no step numbers.
std::unique_ptr<SlotReadTransport> make_shm_reader(const Endpoint& endpoint);

// Drains the worker's ring into a slot buffer of its own; reads take no lock.
std::unique_ptr<SlotReadTransport> make_device_reader(const Endpoint& endpoint);

// For HostCache::per_request.
std::unique_ptr<RequestReadTransport> make_request_reader(const Endpoint& endpoint);

}  // namespace moetap
