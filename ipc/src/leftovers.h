// What dead owners left in /dev/shm.
#pragma once

#include <string>

namespace moetap {

// Every name of moetap's own layouts begins with this. (A wire-compatible buffer may be a vLLM
// process's, which claims nothing, so nobody can tell whether it is in use.)
inline constexpr const char* kOurPrefix = "/moetap_";

// Whether the name still leads to what `fd` refers to.
bool leads_to(const std::string& name, int fd);

// Unlinks the segments of this user whose names begin with kOurPrefix and that no living process
// owns: where each start has a new instance name, nobody else ever would. Whoever still maps one
// keeps it.
void remove_leftovers();

}  // namespace moetap
