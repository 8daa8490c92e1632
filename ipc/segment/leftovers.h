// What dead owners left in /dev/shm.
#pragma once

#include <string>

namespace moetap {

// Every name of moetap's own layouts begins with this. (A wire-compatible buffer may be a vLLM
// process's, which claims nothing, so nobody can tell whether it is in use.)
inline constexpr const char* kOurPrefix = "/moetap_";
inline constexpr const char* kWirePrefix = "/vllm_routed_experts_buffer_";

// shm_open(3) of what is there for reading and writing, without waiting for anything: another
// user's file may have a lease of its owner's on it (F_SETLEASE), and any name may be a pipe. -1
// and errno; EWOULDBLOCK: a lease.
int open_at_once(const std::string& name);

bool same_file(int a, int b);

// Whether the name still leads to what `fd` refers to.
bool leads_to(const std::string& name, int fd);

// shm_unlink(3); false if the name is gone already. SystemError if the system refuses.
bool remove_name(const std::string& name);

// reclaim()s every segment of ours: where each start has a new instance name, nobody else ever
// would. One that the system does not let go of is no reason to end here: whoever wants its name is
// told, and who calls reclaim().
void remove_leftovers();

}  // namespace moetap
