// The native layout of the `shm` transport's segment: [ShmControl][SlotBuffer].
#pragma once

#include <moetap/endpoint.h>
#include <moetap/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "ipc/internal/segment.h"
#include "ipc/internal/wait.h"
#include "ipc/segment/control.h"
#include "ipc/table/lock_times.h"
#include "ipc/table/slot_buffer.h"

namespace moetap {

inline constexpr std::uint64_t kShmMagic = 0x6d6f'6574'6170'5348;  // "moetapSH"
inline constexpr std::uint32_t kShmVersion = 7;

// Why a step has no rows. `step` is 0 while the entry is empty or being written.
struct FailedStep {
  std::atomic<Step> step{0};
  char reason[504] = {};  // zero-terminated
};
static_assert(sizeof(FailedStep) == 512 && sizeof(std::atomic<Step>) == 8);

struct alignas(64) ShmControl {
  ControlHead head;

  // The latest failed steps, written under the lock before num_failed counts them. Failure number n
  // is at index n % kFailures with its reason, and at n % kFailedSteps without. Failures of steps
  // up to `forgotten` are in neither array.
  static constexpr std::size_t kFailures = 32;
  static constexpr std::size_t kFailedSteps = 4096;
  std::atomic<std::uint64_t> num_failed{0};
  std::atomic<Step> forgotten{0};
  FailedStep failed[kFailures];
  std::atomic<Step> failed_steps[kFailedSteps] = {};

  // The last step whose outcome is known. Readers wait on it, but trust SlotBuffer::last_step(). On
  // its own cache line, since a waiting reader spins on it.
  alignas(64) std::atomic<Step> last_step{0};
  WakeWord wake;

  // Set if the writer could not take the lock at once: readers then let it go first.
  std::atomic<std::uint32_t> writer_waits{0};

  LongestTimes lock_times;
};

inline std::size_t native_bytes(const Endpoint& endpoint) {
  return sizeof(ShmControl) + SlotBuffer::bytes(endpoint.num_slots, endpoint.shape.row_bytes());
}

}  // namespace moetap
