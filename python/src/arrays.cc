#include "python/src/arrays.h"

#include <moetap/error.h>

#include <fmt/format.h>

#include <atomic>
#include <bit>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace moetap::python {
namespace {

std::string class_name(nb::handle object) { return nb::type_name(object.type()).c_str(); }

// "int64", "float32", …: what a buffer's format says, or the format itself.
std::string element_name(const Py_buffer& view) {
  const std::string_view format = view.format == nullptr ? "B" : view.format;
  const auto bits = 8 * view.itemsize;
  if (format.ends_with('?')) return "bool";
  if (format.size() == 1 && std::string_view("bhilqn").find(format[0]) != std::string_view::npos)
    return fmt::format("int{}", bits);
  if (format.size() == 1 && std::string_view("BHILQN").find(format[0]) != std::string_view::npos)
    return fmt::format("uint{}", bits);
  if (format.size() == 1 && std::string_view("efd").find(format[0]) != std::string_view::npos)
    return fmt::format("float{}", bits);
  return fmt::format("'{}'", format);
}

bool native_order(std::string_view format) {
  return format.find_first_of(std::endian::native == std::endian::little ? ">!" : "<") ==
         std::string_view::npos;
}

template <class T>
constexpr const char* kTypeName = std::is_signed_v<T> ? "int64" : "uint64";

[[noreturn]] void refuse(const char* name, const std::string& given) {
  throw nb::type_error(
      fmt::format("{} is {}; give one dimension of integers: a NumPy array (int64 is not copied) "
                  "or a sequence of ints",
                  name, given)
          .c_str());
}

template <class T>
T int_of(nb::handle item, const char* name, std::size_t index) {
  if (PyBool_Check(item.ptr())) refuse(name, "a sequence with a bool");
  const nb::object whole = nb::steal(PyNumber_Index(item.ptr()));
  if (!whole.is_valid()) {
    PyErr_Clear();
    refuse(name, fmt::format("a sequence with {} at index {}", class_name(item), index));
  }
  T value;
  if (!nb::try_cast(whole, value)) {
    throw RangeError(fmt::format("{}[{}] is {}, which does not fit {}", name, index,
                                 nb::str(whole).c_str(), kTypeName<T>));
  }
  return value;
}

}  // namespace

HeldBuffer::~HeldBuffer() {
  if (view_.obj != nullptr) PyBuffer_Release(&view_);
}

bool HeldBuffer::open(nb::handle object, int flags) {
  if (!PyObject_CheckBuffer(object.ptr())) return false;
  if (PyObject_GetBuffer(object.ptr(), &view_, flags) == 0) return true;
  PyErr_Clear();
  view_.obj = nullptr;
  return false;
}

template <class T>
std::span<const T> Numbers<T>::get(const char* name) {
  if (given_.is_valid() && values_.data() == nullptr) {
    buffer_ = std::make_unique<HeldBuffer>();
    const bool is_text = PyBytes_Check(given_.ptr()) || PyByteArray_Check(given_.ptr());
    if (PyList_CheckExact(given_.ptr()) || PyTuple_CheckExact(given_.ptr())) {
      take_sequence(name);
    } else if (!is_text && buffer_->open(given_, PyBUF_RECORDS_RO)) {
      take_buffer(name);
    } else if (nb::hasattr(given_, "__array__")) {  // e.g. a torch.Tensor in host memory
      held_ = nb::module_::import_("numpy").attr("asarray")(given_);
      if (!buffer_->open(held_, PyBUF_RECORDS_RO)) refuse(name, class_name(given_));
      take_buffer(name);
    } else {
      take_sequence(name);
    }
  }
  return values_;
}

template <class T>
std::vector<T> Numbers<T>::copy(const char* name) {
  const auto values = get(name);
  if (!copied_.empty()) return std::move(copied_);
  return {values.begin(), values.end()};
}

template <class T>
void Numbers<T>::take_buffer(const char* name) {
  const Py_buffer& view = buffer_->view();
  const std::string_view format = view.format == nullptr ? "B" : view.format;
  if (view.ndim != 1) refuse(name, fmt::format("an array of {} dimensions", view.ndim));
  const char code = format.empty() ? '?' : format.back();
  const bool is_signed = std::string_view("bhilqn").find(code) != std::string_view::npos;
  const bool is_unsigned = std::string_view("BHILQN").find(code) != std::string_view::npos;
  if ((!is_signed && !is_unsigned) || !native_order(format) || format.size() > 2) {
    refuse(name, fmt::format("an array of {}", element_name(view)));
  }
  const auto size = static_cast<std::size_t>(view.shape[0]);
  if (is_signed == std::is_signed_v<T> && view.itemsize == 8 &&
      (view.strides == nullptr || view.strides[0] == 8)) {
    values_ = {static_cast<const T*>(view.buf), size};
    return;
  }
  copied_.resize(size);
  switch (view.itemsize * (is_signed ? 1 : -1)) {
    case 1:
      widen<std::int8_t>(name);
      break;
    case 2:
      widen<std::int16_t>(name);
      break;
    case 4:
      widen<std::int32_t>(name);
      break;
    case 8:
      widen<std::int64_t>(name);
      break;
    case -1:
      widen<std::uint8_t>(name);
      break;
    case -2:
      widen<std::uint16_t>(name);
      break;
    case -4:
      widen<std::uint32_t>(name);
      break;
    case -8:
      widen<std::uint64_t>(name);
      break;
    default:
      refuse(name, fmt::format("an array of {}", element_name(view)));
  }
  values_ = copied_;
}

template <class T>
void Numbers<T>::take_sequence(const char* name) {
  if (PyUnicode_Check(given_.ptr()) || PyBytes_Check(given_.ptr()) ||
      !PySequence_Check(given_.ptr())) {
    refuse(name, class_name(given_));
  }
  const Py_ssize_t length = PySequence_Size(given_.ptr());
  if (length < 0) throw nb::python_error();
  if (length > kMostInSequence) {
    throw ArgumentError(fmt::format("{} is a sequence of {} numbers; give more than {} as an array",
                                    name, length, kMostInSequence));
  }
  held_ = first_items(given_, length);
  if (!held_.is_valid()) throw nb::python_error();
  const auto size = static_cast<std::size_t>(PyTuple_GET_SIZE(held_.ptr()));
  copied_.resize(size);
  for (std::size_t i = 0; i < size; ++i) {
    copied_[i] = int_of<T>(PyTuple_GET_ITEM(held_.ptr(), static_cast<Py_ssize_t>(i)), name, i);
  }
  values_ = copied_;
}

template <class T>
template <class From>
void Numbers<T>::widen(const char* name) {
  const Py_buffer& view = buffer_->view();
  const auto* at = static_cast<const char*>(view.buf);
  const Py_ssize_t stride = view.strides == nullptr ? view.itemsize : view.strides[0];
  for (std::size_t i = 0; i < copied_.size(); ++i) {
    From value;
    std::memcpy(&value, at + static_cast<Py_ssize_t>(i) * stride, sizeof value);
    if (!std::in_range<T>(value)) {
      throw RangeError(
          fmt::format("{}[{}] is {}, which does not fit {}", name, i, value, kTypeName<T>));
    }
    copied_[i] = static_cast<T>(value);
  }
}

template class Numbers<std::int64_t>;
template class Numbers<std::uint64_t>;

nb::object int64_array(nb::handle given, const char* name) {
  Ints numbers(given);
  const std::span<const std::int64_t> values = numbers.get(name);
  const NewArray made = new_array("int64", {std::ssize(values)});
  if (!values.empty()) std::memcpy(made.data, values.data(), values.size_bytes());
  return made.array;
}

namespace {

StepWindow checked_window(std::uint64_t first, std::uint64_t last) {
  if (first <= last) return {Step(first), Step(last)};
  throw ArgumentError(fmt::format(
      "windows has the steps ({}, {}); give the first that can have written the row, then the last",
      first, last));
}

}  // namespace

std::vector<StepWindow> windows_of(nb::handle given) {
  if (PyTuple_Check(given.ptr()) && PyTuple_GET_SIZE(given.ptr()) == 2) {
    const auto steps = Ids(given).copy("windows");
    return {checked_window(steps[0], steps[1])};
  }
  HeldBuffer buffer;
  const auto fits = [](const Py_buffer& view) {
    return view.ndim == 2 && view.shape[1] == 2 && view.itemsize == 8 && view.format != nullptr &&
           std::string_view("LQlq").find(view.format[0]) != std::string_view::npos;
  };
  if (!buffer.open(given, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) || !fits(buffer.view())) {
    throw nb::type_error(
        "windows is neither a pair (first, last) nor an array uint64 [n][2] without gaps");
  }
  const bool is_signed =
      std::string_view("lq").find(buffer.view().format[0]) != std::string_view::npos;
  const auto* steps = static_cast<const std::uint64_t*>(buffer.view().buf);
  std::vector<StepWindow> windows(static_cast<std::size_t>(buffer.view().shape[0]));
  for (std::size_t i = 0; i < windows.size(); ++i) {
    const std::uint64_t first = steps[2 * i];
    const std::uint64_t last = steps[2 * i + 1];
    if (is_signed && std::max(first, last) > std::numeric_limits<std::int64_t>::max()) {
      throw RangeError(fmt::format("windows[{}] is ({}, {}); steps are not negative", i,
                                   static_cast<std::int64_t>(first),
                                   static_cast<std::int64_t>(last)));
    }
    windows[i] = checked_window(first, last);
  }
  return windows;
}

namespace {

bool has_shape(const Py_buffer& view, RowsShape shape) {
  if (view.len != shape.rows * shape.row_bytes) return false;
  return view.ndim == 1 || (view.ndim > 1 && view.shape[0] == shape.rows);
}

// "3, 16"
std::string shape_of(const Py_buffer& view) {
  return fmt::format("{}", fmt::join(view.shape, view.shape + view.ndim, ", "));
}

}  // namespace

std::span<std::byte> bytes_of(HeldBuffer& buffer, nb::handle given, const char* name,
                              RowsShape shape, bool writable) {
  const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
  if (!buffer.open(given, flags)) {
    throw nb::type_error(
        fmt::format("{} is {}, which is no {}array without gaps; give uint8, or bytes", name,
                    class_name(given), writable ? "writable " : "")
            .c_str());
  }
  const Py_buffer& view = buffer.view();
  const std::string_view format = view.format == nullptr ? "B" : view.format;
  if (view.itemsize != 1 || format.ends_with('?')) {
    throw nb::type_error(fmt::format("{} is an array of {}; it holds bytes: use .view(numpy.uint8)",
                                     name, element_name(view))
                             .c_str());
  }
  if (!has_shape(view, shape)) {
    throw ArgumentError(fmt::format(
        "{} is an array of ({}); it must be of ({}), or all {} bytes", name, shape_of(view),
        shape.row_bytes == 1 ? fmt::format("{}", shape.rows)
                             : fmt::format("{}, {}", shape.rows, shape.row_bytes),
        shape.rows * shape.row_bytes));
  }
  return {static_cast<std::byte*>(view.buf), static_cast<std::size_t>(view.len)};
}

std::vector<RowState> states_of(nb::handle given, std::size_t rows) {
  std::vector<RowState> states;
  if (given.is_none()) return states;
  HeldBuffer held;
  for (const std::byte byte :
       bytes_of(held, given, "states", {static_cast<std::int64_t>(rows)}, false)) {
    states.push_back(static_cast<RowState>(byte));
    if (states.back() > RowState::unverified) {
      throw ArgumentError(fmt::format("states has the state {}; they are 0 to {}",
                                      std::to_integer<int>(byte),
                                      static_cast<int>(RowState::unverified)));
    }
  }
  return states;
}

namespace {

// Looked up once: the import would take longer than making a small array.
nb::handle numpy_empty() {
  static std::atomic<PyObject*> found{nullptr};
  PyObject* empty = found.load(std::memory_order_acquire);
  if (empty == nullptr) {
    empty = nb::object(nb::module_::import_("numpy").attr("empty")).release().ptr();
    found.store(empty, std::memory_order_release);
  }
  return empty;
}

}  // namespace

NewArray new_array(const char* dtype, std::initializer_list<std::int64_t> shape) {
  const nb::object sizes = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(shape.size())));
  Py_ssize_t i = 0;
  for (const std::int64_t size : shape)
    PyTuple_SET_ITEM(sizes.ptr(), i++, PyLong_FromLongLong(size));
  NewArray made{numpy_empty()(sizes, dtype)};
  HeldBuffer buffer;
  if (!buffer.open(made.array, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)) {
    throw nb::type_error("numpy.empty() made no array that can be written");
  }
  made.data = static_cast<std::byte*>(buffer.view().buf);
  return made;
}

}  // namespace moetap::python
