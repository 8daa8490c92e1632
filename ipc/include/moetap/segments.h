// What moetap has in this machine's shared memory, and the removal of what dead owners left there.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace moetap {

struct SegmentInfo {
  enum class Kind : std::uint8_t {
    shm,    // buffer of the `shm` transport, native layout
    ring,   // of the `device` transport
    wire,   // buffer of the wire-compatible layout
    other,  // none of these, or none yet: its maker has not finished, or died before it had
  };
  enum class Owner : std::uint8_t {
    alive,    // a living process has it, also one of another container
    dead,     // nobody has: reclaim() removes it
    unknown,  // another user's; or a wire buffer that no process of moetap has: a vLLM process,
              // which marks nothing, may be using it
  };

  std::string name;  // with its leading '/'; the file is /dev/shm<name>
  Kind kind = Kind::other;
  Owner owner = Owner::unknown;
  pid_t owner_pid = 0;   // of the living owner, as its own PID namespace numbers it; else 0
  pid_t reader_pid = 0;  // of the living reader of a ring, likewise
  uid_t user = 0;
  std::uint64_t bytes = 0;  // its size
};

// Every segment in /dev/shm whose name begins as ours do ("moetap_",
// "vllm_routed_experts_buffer_"), by name. Changes nothing, and takes no lock that another process
// could meet. SystemError when out of descriptors.
std::vector<SegmentInfo> find_segments();

// Removes the segment of this name if its owner is dead: no process has it at this very moment,
// whatever find_segments() said. False if there is none, it is in use or another user's, or its
// name does not begin with "/moetap_"; SystemError if its owner is dead and the system does not let
// it be removed (a mount point, a read-only file system). Whoever still has it mapped keeps it. Any
// number of processes may call this, and start workers, at once.
bool reclaim(const std::string& name);

// Why shared memory cannot be in huge pages here, with what to change; "" if it can.
std::string why_no_huge_pages();

}  // namespace moetap
