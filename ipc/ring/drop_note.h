// What a worker that does not wait for a full ring (OnFull::drop) says of the steps that it dropped
// since it last handed over a record. Those before that are told in the record itself.
#pragma once

#include <cstdint>
#include <optional>

#include "ipc/internal/channel.h"
#include "ipc/ring/shared_note.h"

namespace moetap {

class DropNote {
 public:
  struct Drops {
    std::uint64_t after = 0;  // records that come before them
    DropRun run;
  };

  void write(const Drops& drops) noexcept;
  // Nothing while it is being written. Whatever is in the memory, this ends.
  std::optional<Drops> read() const;

 private:
  SharedNote<5> note_;
};

}  // namespace moetap
