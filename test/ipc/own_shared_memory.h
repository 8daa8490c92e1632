// A /dev/shm of a process's own, as a container has one.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "test/ipc/child_process.h"

namespace moetap::test {

// For this process, which has no other thread, and those that it forks from now on. Who is not root
// becomes it in a user namespace, where the system allows that; the user stays the same.
inline bool mount_own_shared_memory(const char* options) {
  if (geteuid() != 0) {
    const std::string user = std::to_string(geteuid());
    if (unshare(CLONE_NEWUSER) != 0) return false;
    std::ofstream("/proc/self/uid_map") << user << " " << user << " 1";
  }
  return unshare(CLONE_NEWNS) == 0 &&
         mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         mount("none", "/dev/shm", "tmpfs", 0, options) == 0;
}

inline bool can_mount_shared_memory() {
  ChildProcess child([] { ASSERT_TRUE(mount_own_shared_memory("size=1m")); });
  return child.join() == 0;
}

}  // namespace moetap::test
