// Finds and removes segments that dead owners left in /dev/shm.
#pragma once

#include <string>

namespace moetap {

// How the names of moetap's own layouts begin, and those of the wire-compatible one.
inline constexpr const char* kOurPrefix = "/moetap_";
inline constexpr const char* kWirePrefix = "/vllm_routed_experts_buffer_";

// shm_open(3) of what is there for reading and writing, without waiting for anything: another
// user's file may have a lease of its owner's on it (F_SETLEASE), and any name may be a pipe. -1
// and errno; EWOULDBLOCK: a lease.
int open_at_once(const std::string& name);

bool same_file(int a, int b);

// Whether the name still refers to the file of `fd`.
bool leads_to(const std::string& name, int fd);

// shm_unlink(3). Returns false if the name is already gone. SystemError if the system refuses.
bool remove_name(const std::string& name);

// Calls reclaim() for every segment of ours: if each start has a new instance name, no other call
// would remove them. A segment that the system does not let be removed is skipped; an owner of its
// name, or a caller of reclaim(), gets the error.
void remove_leftovers();

}  // namespace moetap
