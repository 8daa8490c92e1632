// The program's exit status, for scripts: see --help.
#pragma once

#include <moetap/error.h>

#include <stdexcept>

namespace moetap::tool {

enum ExitStatus : int {
  kDone = 0,
  kFailed = 1,      // the system refused a call, including the output
  kUsage = 2,       // options, names or values that are not valid
  kNotThere = 3,    // no segment of that name
  kDamaged = 4,     // a segment has contents that our worker cannot have written
  kNotPresent = 5,  // not all requested rows are present
  kBusy = 6,        // a lock was not free in time
};

class NotThere : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A deferred signal has arrived: it takes effect once everything is cleaned up.
class Interrupted : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The exit status for the exception that is being handled.
ExitStatus status_of_exception();

}  // namespace moetap::tool
