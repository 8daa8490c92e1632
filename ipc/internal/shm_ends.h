// The two layouts of the `shm` transport, for shm_writer.cc and shm_reader.cc to choose from.
#pragma once

#include <moetap/endpoint.h>
#include <moetap/read_transport.h>
#include <moetap/types.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "ipc/internal/shm_writer.h"

namespace moetap {

// The part of a ShmWriter that depends on the layout. Its caller has checked that steps ascend;
// otherwise as ShmWriter.
class ShmSink {
 public:
  virtual ~ShmSink() = default;
  virtual void publish(Step step, std::span<const MarkedSlot> slots,
                       std::span<const std::byte> rows) = 0;
  virtual void fail(Step step, std::span<const MarkedSlot> slots, const std::string& reason) = 0;
  virtual LockTimes lock_times() const = 0;
};

std::unique_ptr<ShmSink> make_native_sink(const Endpoint& endpoint);
std::unique_ptr<ShmSink> make_wire_sink(const Endpoint& endpoint);

std::unique_ptr<SlotReadTransport> make_native_reader(const Endpoint& endpoint);
std::unique_ptr<SlotReadTransport> make_wire_reader(const Endpoint& endpoint);

// A reader keeps the lock for at most this many bytes of rows at a time, about 0.1 ms. So the
// worker never waits for all rows of a long request.
inline constexpr std::size_t kBytesPerHold = std::size_t{1} << 20;

// How long a reader lets a waiting writer go first: longer than the longest pause of a polling
// FileLock.
inline constexpr Milliseconds kWriterFirst{2};

inline std::size_t rows_per_hold(std::size_t row_bytes) {
  return std::max<std::size_t>(1, kBytesPerHold / row_bytes);
}

}  // namespace moetap
