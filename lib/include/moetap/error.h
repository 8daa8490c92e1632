// The exceptions that moetap throws. Every message names the value, the limit and the remedy. No
// call returns a status. A call that throws has changed nothing unless its comment says otherwise.
#pragma once

#include <moetap/export.h>
#include <moetap/types.h>

#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace moetap {

// A shape, option, configuration file or argument that cannot work.
class MOETAP_API ArgumentError : public std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

// A number outside its range: a slot, an expert id, a token count.
class MOETAP_API RangeError : public std::out_of_range {
  using std::out_of_range::out_of_range;
};

// A call at the wrong time: instance() before create(), publish() before begin_step(), …
class MOETAP_API StateError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A timeout expired. The message names what was waited for.
class MOETAP_API TimeoutError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The operating system refused a call. code() is errno.
class MOETAP_API SystemError : public std::system_error {
 public:
  SystemError(int error, const std::string& what)
      : std::system_error(error, std::generic_category(), what) {}
};

// The device's runtime refused a call. The message has the call and the error's name and text.
// code() is the runtime's error number.
class MOETAP_API DeviceError : public std::runtime_error {
 public:
  DeviceError(int code, const std::string& what) : std::runtime_error(what), code_(code) {}
  int code() const { return code_; }

 private:
  int code_;
};

// Worker and scheduler were given different descriptions, or shared memory has contents that are
// not ours.
class MOETAP_API MismatchError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A living process already owns this name. The message has its pid.
class MOETAP_API OwnedError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A step's rows could not be published; they are missing. reason() is the worker's text.
class MOETAP_API StepFailed : public std::runtime_error {
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

// The library that connects the gathering ranks failed, so they cannot go on. A rank that does not
// arrive is a TimeoutError; one whose counts differ is a MismatchError.
class MOETAP_API CollectiveError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The caller requires all rows to be present, and some are not.
class MOETAP_API RowsNotPresent : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace moetap
