// The operations of a host device's stream.
#pragma once

#include <moetap/kernel.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "gpu/device/host/timeline.h"

namespace moetap::host {

struct Copy {
  void* to;
  const void* from;
  std::size_t bytes;
};

struct Fill {
  void* to;
  std::size_t bytes;
  std::uint8_t value;
};

struct Call {
  void (*callback)(void*);
  void* argument;
};

struct Wait {
  Point point;
};

struct Recording;

struct Replay {
  std::shared_ptr<const Recording> recording;
};

// Ends the stream's thread.
struct Stop {};

using Operation = std::variant<Stop, Copy, Fill, KernelCall, Call, Wait, Replay>;

// The operations of a graph, without waits and replays.
struct Recording {
  std::vector<Operation> operations;
};

void run(const Copy& copy) noexcept;
void run(const Fill& fill) noexcept;
void run(const Call& call) noexcept;
void run(const KernelCall& call) noexcept;  // one lane, blocks in order
// Any of them. A Wait blocks the thread. A Replay runs its operations in order.
void run(const Operation& operation) noexcept;

// A callback must not call the device: StateError if this is called from one.
void refuse_in_callback(const char* what);

}  // namespace moetap::host
