#include "python/src/errors.h"

#include <moetap/error.h>

#include <fmt/format.h>

#include <cstring>
#include <exception>
#include <string>

#include "python/src/common.h"

namespace moetap::python {
namespace {

nb::object class_of(const char* name) { return nb::module_::import_("moetap._errors").attr(name); }

// A message may have the name of a file, in any bytes.
nb::object message_of(const char* text) {
  return nb::steal(
      PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(std::strlen(text)), "backslashreplace"));
}

template <class... Arguments>
void raise(const char* name, Arguments&&... arguments) {
  const nb::object type = class_of(name);
  PyErr_SetObject(type.ptr(), type(std::forward<Arguments>(arguments)...).ptr());
}

void translate(const std::exception_ptr& thrown, void* payload);

// Sets the error of the item, which says what was done before it.
void raise_batch(const BatchError& batch) {
  translate(batch.cause(), nullptr);
  nb::python_error error;
  const nb::handle value = error.value();
  value.attr("index") = batch.index();
  value.attr("done") = batch.done();
  if (nb::hasattr(value, "add_note")) {  // since Python 3.11
    value.attr("add_note")(fmt::format("This is item {} of {}; those before it are done.",
                                       batch.index(), batch.size()));
  }
  error.restore();
}

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const BatchError& batch) {
    raise_batch(batch);
  } catch (const ArgumentError& e) {
    raise("ArgumentError", message_of(e.what()));
  } catch (const RangeError& e) {
    raise("RangeError", message_of(e.what()));
  } catch (const StateError& e) {
    raise("StateError", message_of(e.what()));
  } catch (const TimeoutError& e) {
    raise("TimeoutError", message_of(e.what()));
  } catch (const SystemError& e) {
    raise("SystemError", e.code().value(), message_of(e.what()));
  } catch (const DeviceError& e) {
    raise("DeviceError", message_of(e.what()), e.code());
  } catch (const MismatchError& e) {
    raise("MismatchError", message_of(e.what()));
  } catch (const OwnedError& e) {
    raise("OwnedError", message_of(e.what()));
  } catch (const StepFailed& e) {
    raise("StepFailed", number(e.step()), message_of(e.reason().c_str()));
  } catch (const CollectiveError& e) {
    raise("CollectiveError", message_of(e.what()));
  } catch (const RowsNotPresent& e) {
    raise("RowsNotPresent", message_of(e.what()));
  }
}

}  // namespace

void translate_errors() { nb::register_exception_translator(translate); }

}  // namespace moetap::python
