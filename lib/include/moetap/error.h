// What moetap throws. Every message names the value, the limit and the remedy. Nothing returns a
// status; a call that throws has changed nothing unless its comment says otherwise.
#pragma once

#include <moetap/types.h>

#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace moetap {

// A shape, option, configuration file or argument that cannot work.
class ArgumentError : public std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

// A number outside its limits: a slot, an expert id, a token count.
class RangeError : public std::out_of_range {
  using std::out_of_range::out_of_range;
};

// A call at the wrong time: instance() before create(), publish() before begin_step(), …
class StateError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A time limit ran out. The message names what was waited for.
class TimeoutError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The operating system said no. code() is errno.
class SystemError : public std::system_error {
 public:
  SystemError(int error, const std::string& what)
      : std::system_error(error, std::generic_category(), what) {}
};

// A device's runtime said no. The message has the call and its error's name and text; code() is the
// runtime's number for it.
class DeviceError : public std::runtime_error {
 public:
  DeviceError(int code, const std::string& what) : std::runtime_error(what), code_(code) {}
  int code() const { return code_; }

 private:
  int code_;
};

// The two ends do not describe the same thing, or shared memory holds something that is not ours.
class MismatchError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A name that a living process already owns. The message has its pid.
class OwnedError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The rows of a step could not be published; they are missing. reason() is the worker's text.
class StepFailed : public std::runtime_error {
 public:
  StepFailed(Step step, std::string reason)
      : std::runtime_error("step " + std::to_string(step) + " failed: " + reason),
        step_(step),
        reason_(std::move(reason)) {}
  Step step() const { return step_; }
  const std::string& reason() const { return reason_; }

 private:
  Step step_;
  std::string reason_;
};

// Ranks that gather their parts together cannot go on. What failed is the library that connects
// them; a rank that does not come is a TimeoutError, one that disagrees a MismatchError.
class CollectiveError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A caller demanded rows that are not all present.
class RowsNotPresent : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace moetap
