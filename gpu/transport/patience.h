// How long a step waits for a scheduler that may be gone.
#pragma once

#include <moetap/types.h>

namespace moetap {

// A wait that ended without a reader gave a new one its time to come. So later steps do not wait,
// until a reader is there again.
class Patience {
 public:
  explicit Patience(Milliseconds timeout) : timeout_(timeout) {}

  // The timeout of the next wait. `ring` has has_reader(), which is only called after a wait that
  // ended without one.
  template <class Ring>
  Milliseconds next(const Ring& ring) {
    if (lost_ && ring.has_reader()) lost_ = false;
    return lost_ ? Milliseconds(0) : timeout_;
  }

  // A wait for the reader ended by its timeout.
  template <class Ring>
  void ended(const Ring& ring) {
    lost_ = !ring.has_reader();
  }

 private:
  Milliseconds timeout_;
  bool lost_ = false;
};

}  // namespace moetap
