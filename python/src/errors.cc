#include "python/src/errors.h"

#include <moetap/error.h>

#include <fmt/format.h>

#include <exception>
#include <string>

#include "python/src/common.h"

namespace moetap::python {
namespace {

nb::object class_of(const char* name) { return nb::module_::import_("moetap._errors").attr(name); }

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
    raise("ArgumentError", e.what());
  } catch (const RangeError& e) {
    raise("RangeError", e.what());
  } catch (const StateError& e) {
    raise("StateError", e.what());
  } catch (const TimeoutError& e) {
    raise("TimeoutError", e.what());
  } catch (const SystemError& e) {
    raise("SystemError", e.code().value(), e.what());
  } catch (const DeviceError& e) {
    raise("DeviceError", e.what(), e.code());
  } catch (const MismatchError& e) {
    raise("MismatchError", e.what());
  } catch (const OwnedError& e) {
    raise("OwnedError", e.what());
  } catch (const StepFailed& e) {
    raise("StepFailed", number(e.step()), e.reason());
  } catch (const CollectiveError& e) {
    raise("CollectiveError", e.what());
  } catch (const RowsNotPresent& e) {
    raise("RowsNotPresent", e.what());
  }
}

}  // namespace

void translate_errors() { nb::register_exception_translator(translate); }

}  // namespace moetap::python
