// The plans that a Ledger returns: which rows to read, move or put, and the step that each must
// have. Plans are plain values. They stay right whatever is scheduled later. Each row is read with
// exactly the step that was to write it, so a row that was overwritten meanwhile is reported.
#pragma once

#include <moetap/export.h>
#include <moetap/types.h>

#include <cstdint>
#include <vector>

namespace moetap {

// The rows of positions `range` of one request.
struct RowPlan {
  // States that the ledger already knows for some positions, whatever the buffer contains.
  struct Verdict {
    TokenRange positions;
    RowState state;
  };

  RequestId request = 0;
  TokenRange range;
  std::vector<Slot> slots;          // of the first positions of `range`; later positions are
                                    // missing
  std::vector<StepWindow> windows;  // for each slot: [step, step], where `step` was scheduled to
                                    // write it
  std::vector<Verdict> verdicts;    // in ascending order
  std::vector<BlockId> blocks;      // that contain `slots`, in order
  Step last_step = 0;               // once its outcome is known all rows have arrived; 0: they have
                                    // already
};

// Rows that move from slot from[i] to slot to[i], and have the stamp `step` from then on.
struct MOETAP_API MovePlan {
  Step step = 0;
  std::vector<Slot> from;
  std::vector<StepWindow> windows;  // for each slot of `from`
  std::vector<Slot> to;
  Step last_step = 0;  // as in RowPlan; includes steps that may still write to `to`

  // Joins two plans of accept() for requests that share a step number. ArgumentError if the steps
  // differ.
  void append(const MovePlan& next);
};

// Rows that are put into `slots` from elsewhere, and have the stamp `step` from then on.
struct FillPlan {
  Step step = 0;
  std::vector<Slot> slots;
  Step last_step = 0;  // the last step that may still write to `slots`
};

}  // namespace moetap
