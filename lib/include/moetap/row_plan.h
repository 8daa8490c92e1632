// What a Ledger answers with: which rows to read, move or put, and what makes each of them right.
// Plans are plain values. They stay right whatever is scheduled after they were made: a row that
// was overwritten meanwhile says so, since each is read with the very step that wrote it.
#pragma once

#include <moetap/types.h>

#include <cstdint>
#include <vector>

namespace moetap {

// The rows of positions `range` of one request.
struct RowPlan {
  // What the ledger knows of some positions already, whatever the buffer holds.
  struct Verdict {
    TokenRange positions;
    RowState state;
  };

  std::uint64_t request = 0;
  TokenRange range;
  std::vector<Slot> slots;          // of the first positions of `range`; the others are missing
  std::vector<StepWindow> windows;  // one a slot: [step, step] that the row was scheduled for
  std::vector<Verdict> verdicts;    // in ascending order
  std::vector<BlockId> blocks;      // that `slots` lie in, in order
  Step last_step = 0;               // once its outcome is known every row is there; 0: now
};

// Rows that go from one slot to another, from[i] to to[i], and are of `step` from then on.
struct MovePlan {
  Step step = 0;
  std::vector<Slot> from;
  std::vector<StepWindow> windows;  // one a slot of `from`
  std::vector<Slot> to;
  Step last_step = 0;  // as in RowPlan; also of what may still be written to `to`

  // Both as one plan, of accept() for requests that share a number. ArgumentError for another
  // step's.
  void append(const MovePlan& next);
};

// Rows that come from elsewhere into `slots`, and are of `step` from then on. Whoever has no row
// for a slot stores it as ~slot: the row is missing.
struct FillPlan {
  Step step = 0;
  std::vector<Slot> slots;
  Step last_step = 0;  // of what may still be written to `slots`
};

}  // namespace moetap
