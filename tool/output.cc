#include "tool/output.h"

#include <moetap/error.h>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace moetap::tool {
namespace {

constexpr int kNone = -1;  // poll() ignores it

bool write_all(std::string_view text, int interrupted) {
  while (!text.empty()) {
    pollfd ready[] = {{STDOUT_FILENO, POLLOUT, 0}, {interrupted, POLLIN, 0}};
    if (poll(ready, std::size(ready), -1) < 0) {
      if (errno == EINTR) continue;
      throw SystemError(errno, "cannot wait for the standard output");
    }
    if (ready[1].revents != 0) return false;
    // A pipe that has room accepts this many bytes without waiting.
    const ssize_t n =
        write(STDOUT_FILENO, text.data(), std::min<std::size_t>(text.size(), PIPE_BUF));
    if (n < 0 && errno != EINTR && errno != EAGAIN) {
      throw SystemError(errno, "cannot write to the standard output");
    }
    text.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
  }
  return true;
}

}  // namespace

void occupy_standard_descriptors() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    // Opened read-only, so that writing to it stays an error.
    if (fcntl(fd, F_GETFD) < 0) open("/dev/null", O_RDONLY);
  }
}

void print(std::string_view text) { write_all(text, kNone); }

bool print(std::string_view text, const Interrupts& interrupts) {
  return write_all(text, interrupts.descriptor());
}

}  // namespace moetap::tool
