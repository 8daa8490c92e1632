// Who is who of a shared memory segment, kept by the kernel.
#pragma once

#include <sys/types.h>

#include <string>

namespace moetap {

// Each end claims a range of lock bytes (they need not exist in the file) of an open file
// description lock, which starts at its role and is as long as its pid, plus one. All claims of a
// role meet in the first byte, so only one is granted, and whoever asks what is in the way gets the
// length, and so the pid. The kernel drops a claim with the last copy of its descriptor.
enum class Role : off_t { owner = 0, peer = off_t{1} << 40 };

// False if another descriptor holds the role. `name` is for the SystemError if asking fails.
bool try_claim(int fd, Role role, const std::string& name);

// As pid 0, so that nobody takes this process for the owner: to remove what has none.
bool try_claim_unnamed(int fd, Role role, const std::string& name);

// Pid of the process that holds the role; 0 if none does, or this very descriptor, or an unnamed
// claim.
pid_t claimant(int fd, Role role);

}  // namespace moetap
