// The lock file of the wire layout, which vLLM processes also open.
#pragma once

#include <moetap/endpoint.h>

#include <filesystem>

#include "ipc/internal/file_lock.h"
#include "ipc/system/fork_guard.h"

namespace moetap {

// The path that vLLM uses, in Python's tempfile.gettempdir(): the first writable one of $TMPDIR,
// $TEMP, $TMP, /tmp, /var/tmp, /usr/tmp and the working directory. SystemError if none is writable.
std::filesystem::path wire_lock_path(const Endpoint& endpoint);

// One thread at a time per object. Each access is exclusive, as vLLM's are.
//
// A lock file that was removed, or replaced, does not exclude processes that open its path later.
// So each access is under the lock of the file that the path refers to now; and, as that may change
// during the access, under the one of the buffer too. vLLM processes only know the first.
class WireLock : GuardedDescriptor, public FileLock {
 public:
  // Opens the file, or creates it with mode 0600; does not follow symbolic links. SystemError.
  // MismatchError if it is another user's, or not a regular file.
  explicit WireLock(const Endpoint& endpoint) : WireLock(wire_lock_path(endpoint)) {}
  explicit WireLock(const std::filesystem::path& path);
  WireLock(const WireLock&) = delete;
  WireLock& operator=(const WireLock&) = delete;

  // Takes the lock of the path's file, which is made again if it was removed. TimeoutError as
  // lock_within(), errors of opening it as above.
  std::unique_lock<FileLock> hold(Milliseconds timeout);
  // Whether what is held excludes others: false once the file was removed or replaced.
  bool is_current() const;
};

// What an access holds, taken in this order.
struct WireHold {
  std::unique_lock<FileLock> file;
  std::unique_lock<FileLock> buffer;
};

}  // namespace moetap
