// How the program ends, which scripts go by: see --help.
#pragma once

#include <moetap/error.h>

#include <stdexcept>

namespace moetap::tool {

enum ExitStatus : int {
  kDone = 0,
  kFailed = 1,      // the system refused something, also to take the output
  kUsage = 2,       // options, names or values that cannot be
  kNotThere = 3,    // no segment of that name
  kDamaged = 4,     // a segment holds what no worker of ours writes
  kNotPresent = 5,  // rows that were asked for are not all present
  kBusy = 6,        // a lock was not free in time
};

class NotThere : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A signal that was held back came: it takes effect once everything is put away.
class Interrupted : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The exit status for the exception that is being handled.
ExitStatus status_of_exception();

}  // namespace moetap::tool
