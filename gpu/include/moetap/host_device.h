// The device for machines without a GPU.
#pragma once

#include <moetap/device.h>

#include <cstdint>
#include <memory>

namespace moetap {

// Streams are threads. For programs. As on a GPU, a stream holds 1024 operations; queueing one more
// blocks until there is room.
std::unique_ptr<Device> make_host_device();

// Everything runs inside the calls of the one thread that uses it: a call that queues work runs
// some of it (or none, or other streams'), a blocking wait runs it until its condition holds, in an
// order drawn from `seed` among those that stream order and events allow, so that a missing
// dependency shows and replays. Blocks and lanes of a kernel run in a drawn order too. For tests.
class SeededDevice : public Device {
 public:
  // Work of a held stream runs only in step(), in a poll (idle(), done()) or a blocking wait, and
  // there only when no other stream's can: delays one side of an ordering as far as is legal.
  virtual void hold(Stream& stream, bool held) = 0;
  // Runs one drawn piece of ready work; false if there is none.
  virtual bool step() = 0;
};
std::unique_ptr<SeededDevice> make_seeded_device(std::uint64_t seed);

}  // namespace moetap
