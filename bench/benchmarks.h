// The benchmarks, one file each. Each file registers its own; names are
// what/transport/model/tokens.
#pragma once

namespace moetap::bench {

void register_limits();      // the same rows, moved by plain loops
void register_capture();     // a step's captures on a device
void register_publish();     // the worker's end, complete and only its host half
void register_optin();       // publishing if not all rows are wanted
void register_read();        // the scheduler's end
void register_end_to_end();  // from one process to another
void register_wake();        // the cost of waiting
void register_growth();      // cost as a function of slots and of steps
void register_ledger();      // the scheduler's ledger, without rows
void register_extract();     // all rows of an ended request
void register_calls();       // single calls, as the Python package makes them

}  // namespace moetap::bench
