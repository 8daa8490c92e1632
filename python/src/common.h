// What all parts of the Python package share: how values of the C++ library cross into Python and
// back. Steps, slots, block ids and requests are plain ints there.
#pragma once

#include <moetap/types.h>

#include <nanobind/nanobind.h>
#include <nanobind/stl/detail/nb_list.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace nb = nanobind;

namespace moetap::python {

// The number in a step, slot, block id or request.
template <class Kind>
constexpr auto number(Number<Kind> value) {
  return value.value();
}

// A number that was given. When it is needed: RangeError that names it if it does not fit. It has
// nothing of Python's by then, so it may be needed without the GIL.
template <class T>
class Given {
 public:
  operator T() const {
    if (!value_) throw_range_error();
    return *value_;
  }
  // False if the object is no integer.
  bool read(nb::handle object) noexcept;

 private:
  [[noreturn]] void throw_range_error() const;

  std::optional<T> value_;
  std::string refused_;
};
using GivenStep = Given<Step>;
using GivenBlock = Given<BlockId>;
using GivenRequest = Given<RequestId>;

// The same memory as other integers of 8 bytes: slots, block ids, steps.
template <class To, class From>
std::span<To> as_span_of(std::span<From> from) {
  static_assert(sizeof(To) == sizeof(From) && std::is_trivially_copyable_v<To>);
  return {reinterpret_cast<To*>(from.data()), from.size()};
}

// Seconds, as Python counts waits. Any number: ms() checks it.
struct Seconds {
  double seconds = 0;
  // Rounded up to milliseconds. ArgumentError for a negative number, NaN, or more than 30 years.
  Milliseconds ms() const;
};
// Of a wait; nullopt is a default.
using Timeout = std::optional<Seconds>;
constexpr double in_seconds(Milliseconds ms) { return static_cast<double>(ms.count()) / 1000; }

// During its lifetime the thread does not have the GIL. In an interpreter that ends, Python up to
// 3.13 ends a thread that takes it again, and unwinds through our destructors. Here the thread
// stands still instead, as from 3.14 on.
class ReleasedGil {
 public:
  ReleasedGil() : thread_(PyEval_SaveThread()) {}
  ReleasedGil(const ReleasedGil&) = delete;
  ReleasedGil& operator=(const ReleasedGil&) = delete;
  ~ReleasedGil() { take_again(thread_); }

 private:
  static void take_again(PyThreadState* thread) noexcept;

  PyThreadState* thread_;
};

bool interpreter_ends();

// Positions [start, end): a range, or a pair.
nb::object to_range(TokenRange range);

// More numbers or objects than this must come as an array. A range is short to write, and may have
// more than there is memory for.
constexpr Py_ssize_t kMostInSequence = Py_ssize_t{1} << 24;

// The first items of a sequence, as a tuple that nothing can change meanwhile. Null, with a Python
// error, if it has fewer.
nb::object first_items(nb::handle sequence, Py_ssize_t count) noexcept;

// All of them. Null, without a Python error, if it is no sequence or too long.
nb::object items_of(nb::handle sequence) noexcept;

// The name of a file: of a str, bytes, or an os.PathLike. TypeError for another object, ValueError
// for a name with a 0 byte.
std::string path_of(nb::handle path);

}  // namespace moetap::python

namespace nanobind::detail {

// As nanobind's own, which makes a list of whatever it is given, however long.
template <class T>
struct type_caster<std::vector<T>> : list_caster<std::vector<T>, T> {
  bool from_python(handle source, std::uint32_t flags, cleanup_list* cleanup) noexcept {
    const object items = moetap::python::items_of(source);
    return items.is_valid() && list_caster<std::vector<T>, T>::from_python(items, flags, cleanup);
  }
};

template <>
struct type_caster<moetap::python::Seconds> {
  NB_TYPE_CASTER(moetap::python::Seconds, const_name("float"))
  bool from_python(handle source, std::uint32_t, cleanup_list*) noexcept {
    if (PyBool_Check(source.ptr())) return false;
    const double seconds = PyFloat_AsDouble(source.ptr());
    if (seconds == -1.0 && PyErr_Occurred()) {
      PyErr_Clear();
      return false;
    }
    value.seconds = seconds;
    return true;
  }
  static handle from_cpp(moetap::python::Seconds seconds, rv_policy, cleanup_list*) noexcept {
    return PyFloat_FromDouble(seconds.seconds);
  }
};

template <class G>
struct given_caster {
  NB_TYPE_CASTER(G, const_name("int"))
  bool from_python(handle source, std::uint32_t, cleanup_list*) noexcept {
    return value.read(source);
  }
  static handle from_cpp(const G& number, rv_policy, cleanup_list*) noexcept = delete;
};
template <>
struct type_caster<moetap::python::GivenStep> : given_caster<moetap::python::GivenStep> {};
template <>
struct type_caster<moetap::python::GivenBlock> : given_caster<moetap::python::GivenBlock> {};
template <>
struct type_caster<moetap::python::GivenRequest> : given_caster<moetap::python::GivenRequest> {};

template <>
struct type_caster<moetap::TokenRange> {
  NB_TYPE_CASTER(moetap::TokenRange, const_name("range | tuple[int, int]"))
  bool from_python(handle source, std::uint32_t flags, cleanup_list* cleanup) noexcept;
  static handle from_cpp(moetap::TokenRange range, rv_policy, cleanup_list*) noexcept {
    return moetap::python::to_range(range).release();
  }
};

}  // namespace nanobind::detail
