// Device, Stream, Graph and DeviceArray.
#include "python/src/device.h"

#include <moetap/error.h>
#include <moetap/host_device.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>

#include "python/src/arrays.h"
#include "python/src/bindings.h"

namespace moetap::python {

Device& PyDevice::get() const {
  if (made_in_ == forks()) return *device_;
  throw StateError(
      fmt::format("the device '{}' was opened by another process, of which this one ({}) is a "
                  "fork; open one in "
                  "the process that uses it",
                  name_, getpid()));
}

int PyDevice::index() const {
  int index = 0;
  if (const auto colon = name_.find(':'); colon != std::string::npos) {
    std::from_chars(name_.data() + colon + 1, name_.data() + name_.size(), index);
  }
  return index;
}

std::shared_ptr<Buffer> PyDevice::allocate(std::size_t bytes) {
  auto made = std::make_unique<Buffer>(get().allocate(bytes));
  const std::byte* const start = made->data();
  auto buffer = owned_here(std::move(made));
  std::erase_if(pieces_, [](const auto& piece) { return piece.second.expired(); });
  if (start != nullptr) pieces_[start] = buffer;
  return buffer;
}

std::shared_ptr<Buffer> PyDevice::owner_of(const void* data, std::size_t bytes) const {
  const auto* const start = static_cast<const std::byte*>(data);
  auto piece = pieces_.upper_bound(start);
  if (piece == pieces_.begin()) return nullptr;
  --piece;
  const auto buffer = piece->second.lock();
  if (!buffer || start + bytes > buffer->data() + buffer->size()) return nullptr;
  return buffer;
}

std::shared_ptr<PyDevice> device_of(nb::handle given) {
  if (nb::isinstance<PyDevice>(given)) return nb::cast<std::shared_ptr<PyDevice>>(given);
  std::string name = "auto";
  if (!given.is_none() && !nb::try_cast(given, name)) {
    throw nb::type_error("device is neither a Device nor a name such as 'cuda:0'");
  }
  return std::make_shared<PyDevice>(open_device(name));
}

namespace {

std::shared_ptr<PyStream> wrap(const std::shared_ptr<PyDevice>& device, std::uintptr_t handle) {
  return std::make_shared<PyStream>(device,
                                    wrap_stream(device->get(), reinterpret_cast<void*>(handle)),
                                    fmt::format("the stream {:#x} of {}", handle, device->name()),
                                    static_cast<std::int64_t>(handle));
}

// What __cuda_stream__ returns: (version, handle), from a method or, in older objects, an
// attribute.
std::uintptr_t protocol_handle(nb::handle given) {
  nb::object pair = given.attr("__cuda_stream__");
  if (PyCallable_Check(pair.ptr())) pair = pair();
  std::uintptr_t version = 0;
  std::uintptr_t handle = 0;
  if (!nb::isinstance<nb::sequence>(pair) || nb::len(pair) != 2 ||
      !nb::try_cast(pair[0], version) || !nb::try_cast(pair[1], handle)) {
    throw nb::type_error("__cuda_stream__ is not a pair (version, handle)");
  }
  if (version != 0) {
    throw ArgumentError(fmt::format("__cuda_stream__ is of version {}; 0 is known", version));
  }
  return handle;
}

}  // namespace

std::shared_ptr<PyStream> stream_of(const std::shared_ptr<PyDevice>& device, nb::handle given) {
  if (nb::isinstance<PyStream>(given)) {
    auto stream = nb::cast<std::shared_ptr<PyStream>>(given);
    if (stream->device() == device) return stream;
    throw ArgumentError(
        fmt::format("a stream of another device object ('{}'); make it with this one's "
                    "make_stream()",
                    stream->device()->name()));
  }
  if (PyLong_Check(given.ptr()) && !PyBool_Check(given.ptr())) {
    std::uintptr_t handle = 0;
    if (!nb::try_cast(given, handle))
      throw ArgumentError("a stream's number must be a cudaStream_t");
    return wrap(device, handle);
  }
  if (nb::hasattr(given, "__cuda_stream__")) return wrap(device, protocol_handle(given));
  if (nb::hasattr(given, "cuda_stream")) {  // torch.cuda.Stream before it had the protocol
    std::uintptr_t handle = 0;
    if (!nb::try_cast(nb::object(given.attr("cuda_stream")), handle)) {
      throw nb::type_error("the cuda_stream of stream is not a cudaStream_t as int");
    }
    return wrap(device, handle);
  }
  throw nb::type_error(
      fmt::format("stream is {}; give a Stream, a cudaStream_t as int, or an object with "
                  "__cuda_stream__ such as a torch.cuda.Stream",
                  nb::type_name(given.type()).c_str())
          .c_str());
}

std::shared_ptr<PyStream> current_stream(const std::shared_ptr<PyDevice>& device) {
  const nb::dict modules = nb::module_::import_("sys").attr("modules");
  if (modules.contains("torch")) {
    const nb::object stream = modules["torch"].attr("cuda").attr("current_stream")(device->index());
    return stream_of(device, stream);
  }
  throw ArgumentError(fmt::format(
      "no stream is given for {}, and PyTorch, whose current stream would be taken, is not loaded; "
      "give the stream on which the model runs",
      device->name()));
}

namespace {

constexpr std::pair<std::string_view, std::size_t> kTypes[] = {
    {"uint8", 1}, {"uint16", 2}, {"int16", 2}, {"int32", 4}, {"int64", 8}, {"float32", 4}};

std::size_t size_of_type(const std::string& dtype) {
  for (const auto& [name, bytes] : kTypes) {
    if (name == dtype) return bytes;
  }
  throw ArgumentError(fmt::format(
      "dtype '{}'; device arrays are uint8, uint16, int16, int32, int64 or float32", dtype));
}

DeviceArray empty(PyDevice& device, nb::handle given, const std::string& dtype) {
  std::int64_t one = 0;
  std::vector<std::int64_t> shape;
  if (nb::try_cast(given, one)) {
    shape = {one};
  } else {
    const auto sizes = Ints(given).copy("shape");
    shape.assign(sizes.begin(), sizes.end());
  }
  constexpr std::size_t kMostDimensions = 32;  // of an array in NumPy 1
  if (shape.size() > kMostDimensions) {
    throw ArgumentError(fmt::format("an array of {} dimensions; at most are {}, as in NumPy",
                                    shape.size(), kMostDimensions));
  }
  const std::size_t item = size_of_type(dtype);
  std::size_t bytes = item;
  for (const std::int64_t size : shape) {
    if (size < 0 || (size > 0 && bytes > std::numeric_limits<std::size_t>::max() / 4 /
                                             static_cast<std::size_t>(size))) {
      throw ArgumentError(fmt::format("an array with a dimension of {} elements", size));
    }
    bytes *= static_cast<std::size_t>(size);
  }
  auto buffer = device.allocate(bytes);
  void* const data = buffer->data();
  return {device.shared_from_this(), std::move(buffer), data, std::move(shape), dtype};
}

// The array as one of a framework's, which keeps this one alive.
template <class Framework>
nb::object view_as(nb::handle self) {
  const auto& array = nb::cast<const DeviceArray&>(self);
  std::vector<std::size_t> shape(array.shape.begin(), array.shape.end());
  const bool is_float = array.dtype == "float32";
  const bool is_unsigned = array.dtype.starts_with('u');
  const auto code = is_float      ? nb::dlpack::dtype_code::Float
                    : is_unsigned ? nb::dlpack::dtype_code::UInt
                                  : nb::dlpack::dtype_code::Int;
  const nb::dlpack::dtype type{static_cast<std::uint8_t>(code),
                               static_cast<std::uint8_t>(8 * size_of_type(array.dtype)), 1};
  const bool on_host = array.device->is_host();
  return nb::ndarray<Framework>(array.data, shape.size(), shape.data(), self, nullptr, type,
                                on_host ? nb::device::cpu::value : nb::device::cuda::value,
                                array.device->index())
      .cast();
}

nb::object numpy_of(nb::handle self) {
  const auto& array = nb::cast<const DeviceArray&>(self);
  if (!array.device->is_host()) {
    throw StateError(
        fmt::format("an array in the memory of {}; use it through DLPack or "
                    "__cuda_array_interface__, as with torch.from_dlpack()",
                    array.device->name()));
  }
  return view_as<nb::numpy>(self);
}

nb::dict cuda_interface(const DeviceArray& array) {
  if (array.device->is_host()) {
    throw nb::attribute_error("the array is in host memory, and has no __cuda_array_interface__");
  }
  const char kind = array.dtype == "float32" ? 'f' : array.dtype.starts_with('u') ? 'u' : 'i';
  nb::list shape;
  for (const std::int64_t size : array.shape) shape.append(size);
  nb::dict interface;
  interface["shape"] = nb::tuple(shape);
  interface["typestr"] = fmt::format("<{}{}", kind, size_of_type(array.dtype));
  interface["data"] = nb::make_tuple(reinterpret_cast<std::uintptr_t>(array.data), false);
  interface["version"] = 3;
  interface["stream"] = nb::none();
  return interface;
}

void bind_stream(nb::module_& m) {
  nb::class_<PyGraph>(
      m, "Graph", "Recorded work, for Stream.launch(). It keeps the device arrays that it reads.")
      .def("__repr__",
           [](const PyGraph& g) { return fmt::format("<Graph of {}>", g.device->name()); });
  nb::class_<PyStream> stream(m, "Stream",
                              "A device's queue of ordered work. One thread at a time.");
  stream.def(
      "synchronize",
      [](PyStream& s) {
        const auto use = s.use();
        const ReleasedGil release;
        use->synchronize();
      },
      "Waits until all queued work is done.");
  stream.def_prop_ro("idle", [](PyStream& s) { return s.use()->idle(); });
  stream.def(
      "begin_capture",
      [](PyStream& s) {
        s.use()->begin_capture();
        s.start_recording();
      },
      "Work that is queued from now on is recorded instead of run.");
  stream.def(
      "end_capture",
      [](PyStream& s) {
        auto graph = s.use()->end_capture();
        return PyGraph{s.device(), owned_here(std::move(graph)), s.end_recording(), s.needed()};
      },
      "Ends the recording.");
  stream.def(
      "launch",
      [](PyStream& s, const PyGraph& graph) {
        const auto use = s.use();
        if (!std::ranges::all_of(graph.needed, [](const auto& open) { return *open; })) {
          throw StateError("launch() of a graph in which a Capturer that was closed captures");
        }
        for (const auto& buffer : graph.kept) {
          if (s.recording()) s.keep(buffer);
        }
        for (const auto& open : graph.needed) {
          if (s.recording()) s.need(open);
        }
        const ReleasedGil release;
        use->launch(*graph.graph);
      },
      nb::arg("graph"), nb::keep_alive<1, 2>(), "Queues the recorded work.");
  stream.def_prop_ro("device", [](const PyStream& s) { return s.device(); });
  stream.def("__repr__", [](const PyStream& s) { return fmt::format("<Stream: {}>", s.what()); });
}

}  // namespace

void bind_device(nb::module_& m) {
  nb::class_<DeviceArray> array(
      m, "DeviceArray",
      "An array in device memory, without gaps. capture() and publish() read it when their stream "
      "has\n"
      "come so far, as engines' tensors are read. It has DLPack, and on a GPU "
      "__cuda_array_interface__.");
  array.def_prop_ro(
      "shape", [](const DeviceArray& a) { return nb::tuple(nb::cast(a.shape)); },
      nb::for_getter(nb::sig("def shape(self) -> tuple[int, ...]")));
  array.def_ro("dtype", &DeviceArray::dtype, "NumPy's name of the type.");
  array.def_prop_ro("device", [](const DeviceArray& a) { return a.device; });
  array.def("numpy", &numpy_of, nb::sig("def numpy(self) -> numpy.typing.NDArray[typing.Any]"),
            "A NumPy view that can be written, on a host device. StateError for a GPU's memory.");
  array.def_prop_ro(
      "__cuda_array_interface__", &cuda_interface,
      nb::for_getter(nb::sig("def __cuda_array_interface__(self) -> dict[str, typing.Any]")));
  array.def(
      "__dlpack__",
      [](nb::handle self, const nb::kwargs& options) {
        return view_as<nb::array_api>(self).attr("__dlpack__")(**options);
      },
      nb::sig("def __dlpack__(self, *, stream: typing.Any = None, "
              "max_version: tuple[int, int] | None = None, "
              "dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> typing.Any"));
  array.def(
      "__dlpack_device__",
      [](nb::handle self) { return view_as<nb::array_api>(self).attr("__dlpack_device__")(); },
      nb::sig("def __dlpack_device__(self) -> tuple[int, int]"));
  array.def("__repr__", [](const DeviceArray& a) {
    return fmt::format("<DeviceArray {} [{}] on {}>", a.dtype, fmt::join(a.shape, ", "),
                       a.device->name());
  });

  nb::class_<PyDevice> device(m, "Device",
                              "A GPU, or a host device that behaves like one. See open_device().");
  device.def_prop_ro("name", &PyDevice::name, "'host', 'inline', 'cuda:0', ...");
  device.def("make_stream", [](const std::shared_ptr<PyDevice>& d) {
    return std::make_shared<PyStream>(d, d->get().make_stream(), "a stream of " + d->name());
  });
  device.def("wrap_stream", &stream_of, nb::arg("stream"),
             nb::sig("def wrap_stream(self, stream: object) -> Stream"),
             "An engine's own stream: a cudaStream_t as int, or an object with __cuda_stream__. It "
             "must live\n"
             "as long as it is used.");
  device.def("empty", &empty, nb::arg("shape"), nb::arg("dtype") = "int32",
             nb::sig("def empty(self, shape: int | collections.abc.Sequence[int], dtype: str = "
                     "'int32') -> DeviceArray"),
             "A new array in device memory, with undefined contents.");
  device.def("__repr__", [](const PyDevice& d) { return fmt::format("<Device '{}'>", d.name()); });
  bind_stream(m);
  m.def(
      "open_device",
      [](const std::string& name) { return std::make_shared<PyDevice>(open_device(name)); },
      nb::arg("name") = "auto",
      "'auto' (a GPU if there is one, otherwise host), 'host', 'inline', 'cuda' or 'cuda:N'.\n"
      "ArgumentError that says why if there is no such device.");
  m.def("why_no_cuda", &why_no_cuda,
        "Why this process cannot use a GPU: no driver, none visible, a build without CUDA. None if "
        "it can.");
}

}  // namespace moetap::python
