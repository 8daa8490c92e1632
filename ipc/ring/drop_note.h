// Tells the reader of steps that the worker dropped at a full ring (OnFull::drop) since it last
// handed over a record. A record itself tells of those dropped before it.
#pragma once

#include <cstdint>
#include <optional>

#include "ipc/internal/channel.h"
#include "ipc/ring/shared_note.h"

namespace moetap {

class DropNote {
 public:
  struct Drops {
    std::uint64_t after = 0;  // number of records that come before them
    DropRun run;
  };

  void write(const Drops& drops) noexcept;
  // Nothing while it is being written. Terminates whatever the memory contains.
  std::optional<Drops> read() const;

 private:
  SharedNote<5> note_;
};

}  // namespace moetap
