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

// A base of every exception of moetap's, beside the standard one that says what kind it is.
class MOETAP_API Error {
 public:
  virtual ~Error() = default;
  virtual const char* what() const noexcept = 0;

 protected:
  Error() = default;
  Error(const Error&) = default;
  Error& operator=(const Error&) = default;
};

namespace detail {
// One of moetap's that is a standard exception too.
template <class Standard>
class MOETAP_API ErrorAs : public Standard, public Error {
 public:
  using Standard::Standard;
  const char* what() const noexcept override { return Standard::what(); }
};
}  // namespace detail

// A shape, option, configuration file or argument that cannot work.
class MOETAP_API ArgumentError : public detail::ErrorAs<std::invalid_argument> {
  using ErrorAs::ErrorAs;
};

// A number outside its range: a slot, an expert id, a token count.
class MOETAP_API RangeError : public detail::ErrorAs<std::out_of_range> {
  using ErrorAs::ErrorAs;
};

// A call at the wrong time: instance() before create(), publish() before begin_step(), …
class MOETAP_API StateError : public detail::ErrorAs<std::runtime_error> {
  using ErrorAs::ErrorAs;
};

// A timeout expired. The message names what was waited for.
class MOETAP_API TimeoutError : public detail::ErrorAs<std::runtime_error> {
  using ErrorAs::ErrorAs;
};

// The operating system refused a call. code() is errno.
class MOETAP_API SystemError : public detail::ErrorAs<std::system_error> {
 public:
  SystemError(int error, const std::string& what) : ErrorAs(error, std::generic_category(), what) {}
};

// The device's runtime refused a call. The message has the call and the error's name and text.
// code() is the runtime's error number.
class MOETAP_API DeviceError : public detail::ErrorAs<std::runtime_error> {
 public:
  DeviceError(int code, const std::string& what) : ErrorAs(what), code_(code) {}
  int code() const { return code_; }

 private:
  int code_;
};

// Worker and scheduler were given different descriptions, or shared memory has contents that are
// not ours.
class MOETAP_API MismatchError : public detail::ErrorAs<std::runtime_error> {
  using ErrorAs::ErrorAs;
};

// A living process already owns this name. The message has its pid.
class MOETAP_API OwnedError : public detail::ErrorAs<std::runtime_error> {
  using ErrorAs::ErrorAs;
};

// A step's rows could not be published; they are missing. reason() is the worker's text.
class MOETAP_API StepFailed : public detail::ErrorAs<std::runtime_error> {
 public:
  StepFailed(Step step, std::string reason)
      : ErrorAs("step " + std::to_string(step.value()) + " failed: " + reason),
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
class MOETAP_API CollectiveError : public detail::ErrorAs<std::runtime_error> {
  using ErrorAs::ErrorAs;
};

// The caller requires all rows to be present, and some are not.
class MOETAP_API RowsNotPresent : public detail::ErrorAs<std::runtime_error> {
  using ErrorAs::ErrorAs;
};

}  // namespace moetap
