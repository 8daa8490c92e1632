// Arrays that cross into C++ and back. What comes from Python is taken without a copy where that
// is possible, and checked where it is not understood.
#pragma once

#include <moetap/types.h>

#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "python/src/common.h"

namespace moetap::python {

// A buffer that an object exports (PEP 3118), held until this ends.
class HeldBuffer {
 public:
  HeldBuffer() = default;
  HeldBuffer(const HeldBuffer&) = delete;
  HeldBuffer& operator=(const HeldBuffer&) = delete;
  ~HeldBuffer();
  // False, without a Python error, if the object exports none of this kind.
  bool open(nb::handle object, int flags);
  const Py_buffer& view() const { return view_; }

 private:
  Py_buffer view_{};
};

// One dimension of integers: an array of any integer type, or a sequence of ints. An array of the
// same type without gaps is not copied. Not yet looked at when it arrives: see get().
template <class T>
class Numbers {
 public:
  explicit Numbers(nb::handle given = {}) : given_(given) {}
  Numbers(Numbers&&) = delete;

  // TypeError that names `name` for anything else, RangeError for a number that does not fit. The
  // result lives as long as this.
  std::span<const T> get(const char* name);
  // A copy that no other thread can change, for calls without the GIL.
  std::vector<T> copy(const char* name);

 private:
  void take_buffer(const char* name);
  void take_sequence(const char* name);
  template <class From>
  void widen(const char* name);

  nb::handle given_;
  nb::object held_;
  std::unique_ptr<HeldBuffer> buffer_;
  std::vector<T> copied_;
  std::span<const T> values_;
};
extern template class Numbers<std::int64_t>;
extern template class Numbers<std::uint64_t>;

using Ints = Numbers<std::int64_t>;  // slots, blocks, positions, tokens
using Ids = Numbers<std::uint64_t>;  // requests

// Any integers, as a new NumPy array int64.
nb::object int64_array(nb::handle given, const char* name);

// The states of this many rows, uint8 as read() gives them; empty for None. A copy.
std::vector<RowState> states_of(nb::handle given, std::size_t rows);

// The windows of a read: one for all, as a pair of steps, or an array uint64 [n][2].
std::vector<StepWindow> windows_of(nb::handle given);

// So many rows in an object without gaps, as bytes: [rows][row_bytes], or all in one dimension.
// TypeError that names `name` for no such object, ArgumentError for another shape. A writable
// buffer must be allowed to be written.
struct RowsShape {
  std::int64_t rows;
  std::int64_t row_bytes = 1;
};
std::span<std::byte> bytes_of(HeldBuffer& buffer, nb::handle given, const char* name,
                              RowsShape shape, bool writable);

// A new array of NumPy's, with undefined contents.
struct NewArray {
  nb::object array;
  std::byte* data = nullptr;
};
NewArray new_array(const char* dtype, std::initializer_list<std::int64_t> shape);

// A read-only view of memory that `owner` keeps alive. Strides are in elements.
template <class T>
nb::object view_of(const T* data, std::initializer_list<std::size_t> shape,
                   std::initializer_list<std::int64_t> strides, nb::handle owner) {
  return nb::ndarray<nb::numpy, const T>(data, shape, owner, strides).cast();
}
template <class T>
nb::object view_of(std::span<const T> values, nb::handle owner) {
  return view_of(values.data(), {values.size()}, {1}, owner);
}

// A Python object that shares ownership, for view_of().
template <class T>
nb::object keeper_of(std::shared_ptr<T> owned) {
  return nb::capsule(new std::shared_ptr<T>(std::move(owned)),
                     [](void* p) noexcept { delete static_cast<std::shared_ptr<T>*>(p); });
}

// Without the GIL if so many bytes are moved that another thread may gain by it.
class MayRelease {
 public:
  explicit MayRelease(std::size_t bytes) {
    if (bytes > kMany) release_.emplace();
  }
  static constexpr std::size_t kMany = 4096;

 private:
  std::optional<ReleasedGil> release_;
};

}  // namespace moetap::python

namespace nanobind::detail {
template <class T>
struct type_caster<moetap::python::Numbers<T>> {
  static constexpr auto Name =
      const_name("numpy.typing.NDArray[numpy.integer[typing.Any]] | collections.abc.Sequence[int]");
  template <class>
  using Cast = moetap::python::Numbers<T>;
  template <class>
  static constexpr bool can_cast() {
    return true;
  }
  bool from_python(handle source, std::uint32_t, cleanup_list*) noexcept {
    given = source;
    return true;
  }
  explicit operator moetap::python::Numbers<T>() { return moetap::python::Numbers<T>(given); }
  handle given;
};
}  // namespace nanobind::detail
