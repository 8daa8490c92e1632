// Devices for machines without a GPU.
#pragma once

#include <moetap/device.h>
#include <moetap/export.h>

#include <cstdint>
#include <memory>

namespace moetap {

// For programs. Each stream is a thread. As on a GPU, a stream has room for 1024 operations;
// queueing one more blocks until there is room.
[[nodiscard]] MOETAP_API std::unique_ptr<Device> make_host_device();

// For engines that compute on the CPU. Each call runs its work before it returns, in the calling
// thread, callbacks too. So a stream is always idle, an event always done, and a wait never blocks.
// Memory that others write may be captured from: it is read before capture() returns.
[[nodiscard]] MOETAP_API std::unique_ptr<Device> make_inline_device();

// For tests. Everything runs inside the calls of the one thread that uses it. A call that queues
// work runs some queued work, of any stream, or none. A blocking wait runs work until its condition
// is met. The order is drawn from `seed` among those that streams and events allow, so that a
// missing dependency shows up and can be replayed. Blocks and lanes of a kernel run in a drawn
// order too.
class MOETAP_API SeededDevice : public Device {
 public:
  // Delays one side of an ordering as far as is legal. Work of a held stream runs only in step(),
  // in a poll (idle(), done()) or in a blocking wait, and only if no other stream has ready work.
  virtual void hold(Stream& stream, bool held) = 0;
  // Runs one drawn piece of ready work. Returns false if there is none.
  virtual bool step() = 0;
};
[[nodiscard]] MOETAP_API std::unique_ptr<SeededDevice> make_seeded_device(std::uint64_t seed);

}  // namespace moetap
