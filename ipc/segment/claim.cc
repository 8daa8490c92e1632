#include "ipc/internal/claim.h"

#include <moetap/error.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>

namespace moetap {
namespace {

struct flock range_of(Role role, pid_t pid) {
  struct flock range {};
  range.l_type = F_WRLCK;
  range.l_whence = SEEK_SET;
  range.l_start = static_cast<off_t>(role);
  range.l_len = off_t{1} + pid;
  return range;
}

bool try_claim_as(pid_t pid, int fd, Role role, const std::string& name) {
  auto range = range_of(role, pid);
  if (fcntl(fd, F_OFD_SETLK, &range) == 0) return true;
  if (errno == EAGAIN || errno == EACCES) return false;
  throw SystemError(errno, fmt::format("cannot lock shared memory {}", name));
}

}  // namespace

bool try_claim(int fd, Role role, const std::string& name) {
  return try_claim_as(getpid(), fd, role, name);
}

bool try_claim_unnamed(int fd, Role role, const std::string& name) {
  return try_claim_as(0, fd, role, name);
}

void unname_claim(int fd, Role role) noexcept {
  auto range = range_of(role, getpid());
  ++range.l_start;  // all but the first byte
  --range.l_len;
  range.l_type = F_UNLCK;
  fcntl(fd, F_OFD_SETLK, &range);
}

pid_t claimant(int fd, Role role) {
  auto range = range_of(role, 0);
  if (fcntl(fd, F_OFD_GETLK, &range) != 0) {
    throw SystemError(errno, "cannot ask for the owner of shared memory");
  }
  return range.l_type == F_UNLCK ? 0 : static_cast<pid_t>(range.l_len - 1);
}

}  // namespace moetap
