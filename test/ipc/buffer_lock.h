// The lock of a native buffer, as another process or object has it.
#pragma once

#include "ipc/internal/names.h"
#include "ipc/internal/native_layout.h"
#include "ipc/internal/segment.h"

namespace moetap::test {

struct OpenBuffer {
  Segment buffer;
};

class BufferLock : OpenBuffer, public FileLock {
 public:
  explicit BufferLock(const Endpoint& endpoint)
      : OpenBuffer{Segment::open(buffer_name(endpoint))}, FileLock(lock_of(buffer)) {}
  BufferLock(const BufferLock&) = delete;
  BufferLock& operator=(const BufferLock&) = delete;
};

}  // namespace moetap::test
