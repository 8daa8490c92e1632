#include "ipc/system/fork_guard.h"

#include <moetap/error.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <mutex>
#include <vector>

namespace moetap {
namespace {

std::atomic<std::uint64_t> generation{0};

struct Guarded {
  Guarded();
  std::mutex mutex;
  std::vector<int> descriptors;
};

// Never destroyed, as a child may be forked at any time.
Guarded& guarded() {
  static auto* all = new Guarded;
  return *all;
}

// Runs in the child before anything else: only async-signal-safe calls.
void give_own_description(int fd) {
  char path[32] = "/proc/self/fd/";
  *std::to_chars(path + 14, path + sizeof path - 1, fd).ptr = '\0';
  int own = open(path, (fcntl(fd, F_GETFL) & O_ACCMODE) | O_CLOEXEC);
  if (own < 0) {
    // No descriptors left, or no /proc. The owner will close the number later, so it must stay in
    // use. It gets a file that cannot be locked: then locking fails with an error, and is not
    // silently skipped.
    close(fd);
    own = open("/", O_PATH | O_CLOEXEC);
  }
  if (own < 0 || own == fd) return;
  dup3(own, fd, O_CLOEXEC);
  close(own);
}

Guarded::Guarded() {
  const int error = pthread_atfork([] { guarded().mutex.lock(); }, [] { guarded().mutex.unlock(); },
                                   [] {
                                     generation.fetch_add(1, std::memory_order_relaxed);
                                     for (const int fd : guarded().descriptors) {
                                       give_own_description(fd);
                                     }
                                     guarded().mutex.unlock();
                                   });
  if (error != 0) throw SystemError(error, "cannot watch for forks (pthread_atfork)");
}

}  // namespace

NoForks::NoForks() { guarded().mutex.lock(); }
NoForks::~NoForks() { guarded().mutex.unlock(); }

void NoForks::guard(int fd) { guarded().descriptors.push_back(fd); }
void NoForks::forget(int fd) noexcept { std::erase(guarded().descriptors, fd); }

std::uint64_t fork_generation() noexcept { return generation.load(std::memory_order_relaxed); }

void Maker::throw_forked(const std::string& what) {
  throw StateError(
      fmt::format("{} was made by another process, of which this one ({}) is a fork: only that one "
                  "may use it; make one after the fork, in the process that uses it",
                  what, getpid()));
}

void close_guarded(int fd) noexcept {
  NoForks none;
  none.forget(fd);
  close(fd);
}

}  // namespace moetap
