#include "python/src/common.h"

#include <moetap/error.h>

#include <fmt/format.h>

#include <cmath>

namespace moetap::python {

Milliseconds Seconds::ms() const {
  constexpr double kMost = 1e9;
  if (!(seconds >= 0 && seconds <= kMost)) {
    throw ArgumentError(
        fmt::format("a time of {} seconds; it must be from 0 to {}", seconds, kMost));
  }
  return Milliseconds(static_cast<std::int64_t>(std::ceil(seconds * 1000)));
}

nb::object to_range(TokenRange range) {
  return nb::handle(reinterpret_cast<PyObject*>(&PyRange_Type))(range.start, range.end);
}

namespace {

// PyIndex_Check() held when the number came.
template <class T>
T fitting(nb::handle given, const char* name) {
  const nb::object whole = nb::steal(PyNumber_Index(given.ptr()));
  if (!whole.is_valid()) throw nb::python_error();
  T value;
  if (nb::try_cast(whole, value)) return value;
  throw RangeError(fmt::format("{} is {}; it must be from {} to 2**{} - 1", name,
                               nb::str(whole).c_str(), std::is_signed_v<T> ? "-2**63" : "0",
                               std::is_signed_v<T> ? 63 : 64));
}

}  // namespace

template <>
Given<Step>::operator Step() const {
  return Step(fitting<std::uint64_t>(given, "the step"));
}
template <>
Given<BlockId>::operator BlockId() const {
  return BlockId(fitting<std::int64_t>(given, "the block"));
}
template <>
Given<RequestId>::operator RequestId() const {
  return RequestId(fitting<std::uint64_t>(given, "the request"));
}

}  // namespace moetap::python

namespace nanobind::detail {
namespace {

bool int_of(handle object, std::uint32_t flags, cleanup_list* cleanup, std::int64_t& to) noexcept {
  make_caster<std::int64_t> caster;
  if (PyBool_Check(object.ptr()) || !caster.from_python(object, flags, cleanup)) return false;
  to = caster.value;
  return true;
}

bool attribute_of(handle object, const char* name, std::int64_t& to) noexcept {
  PyObject* const number = PyObject_GetAttrString(object.ptr(), name);
  if (number == nullptr) {
    PyErr_Clear();
    return false;
  }
  const bool read = int_of(number, 0, nullptr, to);
  Py_DECREF(number);
  return read;
}

}  // namespace

bool type_caster<moetap::TokenRange>::from_python(handle source, std::uint32_t flags,
                                                  cleanup_list* cleanup) noexcept {
  if (PyTuple_CheckExact(source.ptr()) && PyTuple_GET_SIZE(source.ptr()) == 2) {
    return int_of(PyTuple_GET_ITEM(source.ptr(), 0), flags, cleanup, value.start) &&
           int_of(PyTuple_GET_ITEM(source.ptr(), 1), flags, cleanup, value.end);
  }
  std::int64_t step = 0;
  return PyRange_Check(source.ptr()) && attribute_of(source, "start", value.start) &&
         attribute_of(source, "stop", value.end) && attribute_of(source, "step", step) && step == 1;
}

}  // namespace nanobind::detail
