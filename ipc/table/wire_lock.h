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
class WireLock : GuardedDescriptor, public FileLock {
 public:
  // Opens the file, or creates it with mode 0600; does not follow symbolic links. SystemError.
  // MismatchError if it is another user's, or not a regular file.
  explicit WireLock(const Endpoint& endpoint) : WireLock(wire_lock_path(endpoint)) {}
  explicit WireLock(const std::filesystem::path& path);
  WireLock(const WireLock&) = delete;
  WireLock& operator=(const WireLock&) = delete;
};

}  // namespace moetap
