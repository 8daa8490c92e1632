// Lists moetap's segments in this machine's shared memory, and removes those that dead owners left
// there.
#pragma once

#include <moetap/export.h>

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
    other,  // none of these, or not initialised: its creator has not finished, or died before
  };
  enum class Owner : std::uint8_t {
    alive,    // a living process owns it, possibly in another container
    dead,     // no process owns it: reclaim() removes it
    unknown,  // another user's, or a wire buffer that no process of moetap owns, but that a vLLM
              // process made, or that some process has open
  };

  std::string name;  // with a leading '/'; the file is /dev/shm<name>
  Kind kind = Kind::other;
  Owner owner = Owner::unknown;
  pid_t owner_pid = 0;   // of the living owner, in the owner's own PID namespace; else 0
  pid_t reader_pid = 0;  // of a ring's living reader, likewise
  uid_t user = 0;
  std::uint64_t bytes = 0;  // size of the segment
};

// Every segment in /dev/shm whose name begins with "moetap_" or "vllm_routed_experts_buffer_",
// sorted by name. Changes nothing, and takes no lock that could delay another process. SystemError
// when out of descriptors.
MOETAP_API std::vector<SegmentInfo> find_segments();

// Removes the segment of this name if its owner is dead, which is checked again at the time of this
// call. Returns false if there is no such segment, if it is in use or another user's, or if its
// name does not begin as those of find_segments(). A wire buffer is in use as long as any process
// has it open or mapped; one that a vLLM process made is not removed. SystemError if its owner is
// dead but the system does not allow its removal (a mount point, a read-only file system).
// Processes that still map it keep their mapping. Any number of processes may call this, and start
// workers, at the same time.
MOETAP_API bool reclaim(const std::string& name);

// Why this machine cannot have shared memory in huge pages, and what to change; "" if it can.
MOETAP_API std::string why_no_huge_pages();

}  // namespace moetap
