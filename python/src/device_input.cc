#include "python/src/device_input.h"

#include <moetap/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

namespace moetap::python {
namespace {

[[noreturn]] void refuse_object(nb::handle given, const char* what) {
  throw nb::type_error(
      fmt::format("{} is {}; give an array: a NumPy one, a DeviceArray, or one with "
                  "__cuda_array_interface__ or __dlpack__",
                  what, nb::type_name(given.type()).c_str())
          .c_str());
}

void pack_strides(GivenArray& array) {
  array.strides.resize(array.shape.size());
  auto stride = static_cast<std::int64_t>(array.item);
  for (std::size_t i = array.shape.size(); i-- > 0; stride *= array.shape[i]) {
    array.strides[i] = stride;
  }
}

void look_at_own(GivenArray& array, nb::handle given, const std::shared_ptr<PyDevice>& device) {
  const auto& own = nb::cast<const DeviceArray&>(given);
  if (own.device != device) {
    throw ArgumentError(fmt::format("{} is in the memory of another device object ('{}')",
                                    array.what, own.device->name()));
  }
  array.data = own.data;
  array.kind = own.dtype == "float32" ? 'f' : own.dtype.starts_with('u') ? 'u' : 'i';
  array.item = own.dtype.ends_with("64")   ? 8
               : own.dtype.ends_with("32") ? 4
               : own.dtype.ends_with("16") ? 2
                                           : 1;
  array.shape = own.shape;
  pack_strides(array);
  array.where = device->is_host() ? GivenArray::Where::host : GivenArray::Where::gpu;
  array.gpu = device->index();
  array.device_memory = device->owner_of(own.data, 0);
}

// https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html, version 2 or 3
void look_at_cuda(GivenArray& array, const nb::object& found) {
  const auto interface = nb::cast<nb::dict>(found);
  array.where = GivenArray::Where::gpu;
  array.data = reinterpret_cast<const void*>(nb::cast<std::uintptr_t>(interface["data"][0]));
  const auto type = nb::cast<std::string>(interface["typestr"]);
  if (type.size() == 3 && type[0] != '>') {
    array.kind = type[1];
    array.item = static_cast<std::size_t>(type[2] - '0');
  }
  for (nb::handle size : interface["shape"]) array.shape.push_back(nb::cast<std::int64_t>(size));
  if (interface.contains("strides") && !interface["strides"].is_none()) {
    for (nb::handle stride : interface["strides"])
      array.strides.push_back(nb::cast<std::int64_t>(stride));
  } else {
    pack_strides(array);
  }
  if (array.strides.size() != array.shape.size() || array.item == 0 || array.item > 8) {
    throw nb::type_error(
        fmt::format("the __cuda_array_interface__ of {} is of type '{}'", array.what, type)
            .c_str());
  }
  if (interface.contains("stream") && !interface["stream"].is_none()) {
    array.stream = nb::cast<std::int64_t>(interface["stream"]);
  }
}

bool look_at_buffer(GivenArray& array, nb::handle given) {
  array.buffer = std::make_unique<HeldBuffer>();
  if (!array.buffer->open(given, PyBUF_RECORDS_RO)) return false;
  const Py_buffer& view = array.buffer->view();
  const std::string_view format = view.format == nullptr ? "B" : view.format;
  const bool swapped = format.find_first_of(">!") != std::string_view::npos;
  const char code = format.empty() || swapped ? '?' : format.back();
  if (format.size() <= 2 && !swapped) {
    if (std::string_view("bhilqn").find(code) != std::string_view::npos) array.kind = 'i';
    if (std::string_view("BHILQN").find(code) != std::string_view::npos) array.kind = 'u';
    if (std::string_view("efd").find(code) != std::string_view::npos) array.kind = 'f';
  }
  array.data = view.buf;
  array.item = static_cast<std::size_t>(view.itemsize);
  array.type = format;
  array.shape.assign(view.shape, view.shape + view.ndim);
  if (view.strides == nullptr) {  // as of ctypes
    pack_strides(array);
  } else {
    array.strides.assign(view.strides, view.strides + view.ndim);
  }
  return true;
}

// The stream's number for DLPack, where 0 is not allowed and 1 is the legacy default stream.
std::int64_t dlpack_stream(const PyStream& stream) {
  return std::max<std::int64_t>(stream.handle(), 1);
}

// The producer orders its work before our stream. If only the device knows that one, it orders it
// before the legacy default stream, which is then waited for.
void look_at_dlpack(GivenArray& array, nb::handle given, const PyStream& stream) {
  const auto kind = nb::cast<std::pair<int, int>>(given.attr("__dlpack_device__")());
  const bool on_gpu =
      kind.first == nb::device::cuda::value || kind.first == nb::device::cuda_managed::value;
  if (!on_gpu && kind.first != nb::device::cpu::value &&
      kind.first != nb::device::cuda_host::value) {
    throw ArgumentError(
        fmt::format("{} is on a device of DLPack's kind {}; it must be on a GPU of CUDA, "
                    "or in host memory",
                    array.what, kind.first));
  }
  const nb::object capsule =
      on_gpu ? given.attr("__dlpack__")(nb::arg("stream") = dlpack_stream(stream))
             : given.attr("__dlpack__")();
  if (on_gpu && stream.handle() < 0) array.stream = dlpack_stream(stream);
  const auto& tensor = array.tensor = nb::cast<nb::ndarray<nb::ro>>(capsule);
  constexpr std::pair<nb::dlpack::dtype_code, char> kKinds[] = {
      {nb::dlpack::dtype_code::Int, 'i'},
      {nb::dlpack::dtype_code::UInt, 'u'},
      {nb::dlpack::dtype_code::Float, 'f'},
      {nb::dlpack::dtype_code::Bfloat, 'b'}};
  for (const auto& [code, letter] : kKinds) {
    if (tensor.dtype().code == static_cast<std::uint8_t>(code) && tensor.dtype().lanes == 1) {
      array.kind = letter;
    }
  }
  array.where = on_gpu ? GivenArray::Where::gpu : GivenArray::Where::host;
  array.gpu = on_gpu ? tensor.device_id() : -1;
  array.data = tensor.data();
  array.item = tensor.itemsize();
  for (std::size_t i = 0; i < tensor.ndim(); ++i) {
    array.shape.push_back(static_cast<std::int64_t>(tensor.shape(i)));
    array.strides.push_back(tensor.stride(i) * static_cast<std::int64_t>(array.item));
  }
}

// TypeError if the object has what the protocol does not allow.
template <class Look>
void understood(const GivenArray& array, const char* protocol, Look&& look) {
  const auto refuse = [&] {
    throw nb::type_error(
        fmt::format("{} has {}, but not as it must be", array.what, protocol).c_str());
  };
  try {
    look();
  } catch (const nb::cast_error&) {
    refuse();
  } catch (const nb::python_error& error) {
    if (!error.matches(PyExc_LookupError)) throw;
    refuse();
  }
}

// Device memory is not read by the host, and the host's not by a GPU.
void check_place(GivenArray& array, PyDevice& device) {
  if (array.where == GivenArray::Where::gpu && device.is_host()) {
    throw ArgumentError(fmt::format("{} is in a GPU's memory, but this Capturer's device is '{}'",
                                    array.what, device.name()));
  }
  if (array.where == GivenArray::Where::gpu && array.gpu >= 0 && array.gpu != device.index()) {
    throw ArgumentError(
        fmt::format("{} is in the memory of cuda:{}, but this Capturer's device is '{}'",
                    array.what, array.gpu, device.name()));
  }
  if (array.where == GivenArray::Where::host && !array.device_memory && array.data != nullptr) {
    array.device_memory = device.owner_of(array.data, static_cast<std::size_t>(array.bytes()));
  }
}

void wait_for_producer(const GivenArray& array, const std::shared_ptr<PyDevice>& device,
                       PyStream& stream) {
  if (array.stream < 0 || array.stream == stream.handle()) return;
  const auto producer = wrap_stream(device->get(), reinterpret_cast<void*>(array.stream));
  const auto event = device->get().make_event();
  producer->record(*event);
  stream.use()->wait(*event);
}

IdType id_type_of(const GivenArray& array) {
  constexpr std::pair<std::string_view, IdType> types[] = {{"uint8", IdType::uint8},
                                                           {"uint16", IdType::uint16},
                                                           {"int16", IdType::int16},
                                                           {"int32", IdType::int32},
                                                           {"int64", IdType::int64}};
  const std::string name = array.type_name();
  for (const auto& [type, value] : types) {
    if (type == name) return value;
  }
  throw nb::type_error(
      fmt::format("{} is of {}; expert ids are int32, int64, int16, uint16 or uint8", array.what,
                  name)
          .c_str());
}

// The elements from row to row.
std::int64_t row_stride(const GivenArray& array) {
  if (array.shape.size() != 2) {
    throw ArgumentError(fmt::format("{} has {} dimensions; it must have 2: [tokens][top_k]",
                                    array.what, array.shape.size()));
  }
  const auto item = static_cast<std::int64_t>(array.item);
  if (reinterpret_cast<std::uintptr_t>(array.data) % array.item != 0) {
    throw ArgumentError(
        fmt::format("{} does not lie at a multiple of its elements' size ({} bytes): "
                    "copy it first",
                    array.what, item));
  }
  if (array.shape[1] > 1 && array.strides[1] != item) {
    throw ArgumentError(
        fmt::format("the columns of {} are {} bytes apart; they must be next to each "
                    "other ({} bytes): copy it first",
                    array.what, array.strides[1], item));
  }
  if (array.shape[0] <= 1) return array.shape[1];
  if (array.strides[0] % item != 0 || array.strides[0] < array.shape[1] * item) {
    throw ArgumentError(
        fmt::format("the rows of {} are {} bytes apart; it must be a multiple of {} from "
                    "{} on: copy it first",
                    array.what, array.strides[0], item, array.shape[1] * item));
  }
  return array.strides[0] / item;
}

}  // namespace

std::string GivenArray::type_name() const {
  switch (kind) {
    case 'i':
      return fmt::format("int{}", 8 * item);
    case 'u':
      return fmt::format("uint{}", 8 * item);
    case 'f':
      return fmt::format("float{}", 8 * item);
    case 'b':
      return "bfloat16";
    default:
      return type.empty() ? "another type" : fmt::format("'{}'", type);
  }
}

std::int64_t GivenArray::bytes() const {
  auto last = static_cast<std::int64_t>(item);
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 0) return 0;
    last += (shape[i] - 1) * std::max<std::int64_t>(strides[i], 0);
  }
  return last;
}

GivenArray look_at(nb::handle given, const char* what, const std::shared_ptr<PyDevice>& device,
                   PyStream& stream) {
  GivenArray array;
  array.what = what;
  if (nb::isinstance<DeviceArray>(given)) {
    look_at_own(array, given, device);
  } else if (look_at_buffer(array, given)) {
    // A NumPy array, or another one in host memory.
  } else if (const nb::object cuda = nb::getattr(given, "__cuda_array_interface__", nb::none());
             !cuda.is_none()) {
    understood(array, "__cuda_array_interface__", [&] { look_at_cuda(array, cuda); });
  } else if (nb::hasattr(given, "__dlpack__") && nb::hasattr(given, "__dlpack_device__")) {
    understood(array, "DLPack", [&] { look_at_dlpack(array, given, stream); });
  } else {
    refuse_object(given, what);
  }
  check_place(array, *device);
  if (array.where == GivenArray::Where::gpu) wait_for_producer(array, device, stream);
  return array;
}

Uploads::Piece& Uploads::free_piece(std::size_t bytes) {
  for (Piece& piece : pieces_) {
    if (!piece.in_use && piece.device.size() >= bytes && piece.read->done()) return piece;
  }
  Device& device = device_->get();
  Piece piece{device.allocate(bytes), {}, device.make_event()};
  if (!device_->is_host()) piece.pinned = device.allocate_pinned(bytes);
  pieces_.push_back(std::move(piece));
  return pieces_.back();
}

const void* Uploads::place(const GivenArray& array, std::size_t bytes, PyStream& stream,
                           bool in_graph) {
  if (array.where == GivenArray::Where::gpu || array.device_memory) {
    if (array.device_memory && stream.recording()) stream.keep(array.device_memory);
    return array.data;
  }
  if (in_graph) {
    throw ArgumentError(fmt::format(
        "{} is in host memory, which a graph cannot read again; use an array of Device.empty()",
        array.what));
  }
  if (bytes == 0) return array.data;
  Piece& piece = free_piece(bytes);
  const bool direct = device_->is_host();  // whose memory the host can write
  const MayRelease may(bytes);
  std::memcpy(direct ? piece.device.data() : piece.pinned.data(), array.data, bytes);
  if (!direct) stream.use()->copy(piece.device.data(), piece.pinned.data(), bytes);
  piece.in_use = true;
  return piece.device.data();
}

void Uploads::done(Stream& stream) {
  for (Piece& piece : pieces_) {
    if (!piece.in_use) continue;
    stream.record(*piece.read);
    piece.in_use = false;
  }
}

TopkIds topk_ids_of(const GivenArray& ids, Uploads& uploads, PyStream& stream, bool in_graph) {
  const IdType type = id_type_of(ids);
  const std::int64_t stride = row_stride(ids);
  const auto bytes = static_cast<std::size_t>(ids.bytes());
  return {.data = uploads.place(ids, bytes, stream, in_graph),
          .type = type,
          .rows = ids.shape[0],
          .columns = ids.shape[1],
          .row_stride = stride};
}

TopkWeights weights_of(const GivenArray& weights, const TopkIds& ids, Uploads& uploads,
                       PyStream& stream, bool in_graph) {
  const std::string name = weights.type_name();
  const bool is_bfloat16 = name == "bfloat16" || name == "uint16";  // NumPy's bits of one
  if (!is_bfloat16 && name != "float32") {
    throw nb::type_error(
        fmt::format("{} is of {}; weights are float32, or bfloat16 (its bits as uint16)",
                    weights.what, name)
            .c_str());
  }
  const std::int64_t stride = row_stride(weights);
  if (weights.shape[0] != ids.rows || weights.shape[1] != ids.columns) {
    throw ArgumentError(fmt::format("{} is [{}][{}], but the ids are [{}][{}]", weights.what,
                                    weights.shape[0], weights.shape[1], ids.rows, ids.columns));
  }
  const auto bytes = static_cast<std::size_t>(weights.bytes());
  return {.data = uploads.place(weights, bytes, stream, in_graph),
          .type = is_bfloat16 ? WeightType::bfloat16 : WeightType::float32,
          .row_stride = stride};
}

}  // namespace moetap::python
