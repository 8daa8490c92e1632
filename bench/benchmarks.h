// The benchmarks, a file each. Every one registers its own; the names are what/who/model/tokens.
#pragma once

namespace moetap::bench {

void register_limits();      // the same rows moved by plain loops
void register_capture();     // a step's captures on a device
void register_publish();     // the worker's end, whole and its host half
void register_optin();       // publishing where not all rows are wanted
void register_read();        // the scheduler's end
void register_end_to_end();  // one process to another
void register_wake();        // what waiting costs
void register_growth();      // cost against slots and against steps
void register_ledger();      // the scheduler's books, without any rows
void register_extract();     // all rows of a request that is over

}  // namespace moetap::bench
