// The lock file of the wire layout, which a vLLM process opens too.
#pragma once

#include <moetap/endpoint.h>

#include <filesystem>

#include "ipc/internal/file_lock.h"
#include "ipc/system/fork_guard.h"

namespace moetap {

// Where vLLM has it, in Python's tempfile.gettempdir(): the first of $TMPDIR, $TEMP, $TMP, /tmp,
// /var/tmp, /usr/tmp and the working directory that one can write to. SystemError if none.
std::filesystem::path wire_lock_path(const Endpoint& endpoint);

// One thread at a time per object. Each access is exclusive, as vLLM's are.
class WireLock : GuardedDescriptor, public FileLock {
 public:
  // Opens the file, or creates it, mode 0600, following no symbolic link. SystemError;
  // MismatchError if it is another user's or no regular file.
  explicit WireLock(const Endpoint& endpoint) : WireLock(wire_lock_path(endpoint)) {}
  explicit WireLock(const std::filesystem::path& path);
  WireLock(const WireLock&) = delete;
  WireLock& operator=(const WireLock&) = delete;
};

}  // namespace moetap
