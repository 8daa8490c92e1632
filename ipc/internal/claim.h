// The roles of processes at a shared memory segment, recorded by the kernel.
#pragma once

#include <sys/types.h>

#include <string>

namespace moetap {

// Each end claims its role with an open file description lock on a range of bytes, which need not
// exist in the file. The range starts at the role's number and has the length pid + 1. All claims
// to a role share the first byte, so only one is granted. A process that asks for the conflicting
// lock gets its length, and so the pid. The kernel drops a claim with the last copy of its
// descriptor.
enum class Role : off_t { owner = 0, peer = off_t{1} << 40 };

// False if another descriptor holds the role. `name` is for the SystemError if asking fails.
bool try_claim(int fd, Role role, const std::string& name);

// Claims with pid 0, so that no process takes this one for the owner: to remove a segment without
// an owner.
bool try_claim_unnamed(int fd, Role role, const std::string& name);

// Keeps the role from others, but as with pid 0: for an owner that is about to end.
void unname_claim(int fd, Role role) noexcept;

// The pid of the process that has the role. 0 if no process has it, this descriptor does, or the
// claim is unnamed.
pid_t claimant(int fd, Role role);

}  // namespace moetap
