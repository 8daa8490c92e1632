// Whose a file is, and which.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

namespace moetap {

// Whether it is a regular file of this process's user. Others' are left alone, whatever their
// names.
inline bool is_own_file(const struct stat& status) {
  return S_ISREG(status.st_mode) && status.st_uid == geteuid();
}

inline bool same_file(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

}  // namespace moetap
