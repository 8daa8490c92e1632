#include "python/src/common.h"

#include <moetap/error.h>

#include <cxxabi.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cmath>

namespace moetap::python {

bool interpreter_ends() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

void ReleasedGil::take_again(PyThreadState* thread) noexcept {
  try {
    PyEval_RestoreThread(thread);
  } catch (abi::__forced_unwind&) {
    for (;;) pause();
  }
}

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

nb::object first_items(nb::handle sequence, Py_ssize_t count) noexcept {
  if (PyList_CheckExact(sequence.ptr())) return nb::steal(PyList_AsTuple(sequence.ptr()));
  nb::object items = nb::steal(PyTuple_New(count));
  for (Py_ssize_t i = 0; items.is_valid() && i < count; ++i) {
    PyObject* const item = PySequence_GetItem(sequence.ptr(), i);
    if (item == nullptr) return {};
    PyTuple_SET_ITEM(items.ptr(), i, item);
  }
  return items;
}

nb::object items_of(nb::handle sequence) noexcept {
  if (PyTuple_CheckExact(sequence.ptr())) return nb::borrow(sequence);
  const bool is_text = PyUnicode_Check(sequence.ptr()) || PyBytes_Check(sequence.ptr());
  if (is_text || !PySequence_Check(sequence.ptr())) return {};
  const Py_ssize_t count = PySequence_Size(sequence.ptr());
  nb::object items;
  if (count >= 0 && count <= kMostInSequence) items = first_items(sequence, count);
  if (!items.is_valid()) PyErr_Clear();
  return items;
}

std::string path_of(nb::handle path) {
  PyObject* name = nullptr;
  if (PyUnicode_FSConverter(path.ptr(), &name) == 0) throw nb::python_error();
  const nb::object held = nb::steal(name);
  return {PyBytes_AsString(name), static_cast<std::size_t>(PyBytes_Size(name))};
}

namespace {

template <class T>
constexpr const char* kNameOf = "the step";
template <>
constexpr const char* kNameOf<BlockId> = "the block";
template <>
constexpr const char* kNameOf<RequestId> = "the request";

}  // namespace

template <class T>
bool Given<T>::read(nb::handle object) noexcept {
  using Integer = typename T::Integer;
  if (PyBool_Check(object.ptr()) || !PyIndex_Check(object.ptr())) return false;
  const nb::object whole = nb::steal(PyNumber_Index(object.ptr()));
  if (!whole.is_valid()) {
    PyErr_Clear();
    return false;
  }
  Integer integer = 0;
  if (nb::try_cast(whole, integer)) {
    value_.emplace(integer);
    return true;
  }
  const nb::object text = nb::steal(PyObject_Str(whole.ptr()));  // null for some that are very long
  if (!text.is_valid()) PyErr_Clear();
  refused_ = text.is_valid() ? nb::cast<std::string>(text) : "a number of very many digits";
  return true;
}

template <class T>
void Given<T>::throw_range_error() const {
  constexpr bool is_signed = std::is_signed_v<typename T::Integer>;
  throw RangeError(fmt::format("{} is {}; it must be from {} to 2**{} - 1", kNameOf<T>, refused_,
                               is_signed ? "-2**63" : "0", is_signed ? 63 : 64));
}

template class Given<Step>;
template class Given<BlockId>;
template class Given<RequestId>;

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
