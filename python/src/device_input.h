// Arrays that a Capturer reads: device memory as it is, host memory through a copy on the device.
#pragma once

#include <moetap/topk_ids.h>

#include <nanobind/ndarray.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "python/src/arrays.h"
#include "python/src/device.h"

namespace moetap::python {

// An array as its owner describes it, looked at but not yet read.
struct GivenArray {
  enum class Where : std::uint8_t { host, gpu };

  std::string what;  // for messages: "topk_ids"
  const void* data = nullptr;
  char kind = '?';  // i, u, f, b (bfloat16), or another one that is not understood
  std::size_t item = 0;
  std::string type;  // of a buffer, as it says it
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  // in bytes
  Where where = Where::host;
  int gpu = -1;              // -1: not said
  std::int64_t stream = -1;  // of a GPU's producer, which is to be waited for; -1: none
  std::shared_ptr<Buffer> device_memory;  // of ours, if it is an array of Device.empty()

  // What keeps the memory there while it is looked at.
  std::unique_ptr<HeldBuffer> buffer;
  nb::ndarray<nb::ro> tensor;

  std::string type_name() const;  // "int32"
  std::int64_t bytes() const;     // from the first element to the last, without negative strides
};

// Looks at an array. TypeError that names `what` if the object exports none, or no numbers.
GivenArray look_at(nb::handle given, const char* what, const std::shared_ptr<PyDevice>& device,
                   PyStream& stream);

// Copies of host arrays in device memory, which are used again once their readers are done.
class Uploads {
 public:
  explicit Uploads(std::shared_ptr<PyDevice> device) : device_(std::move(device)) {}

  // The array where kernels on `stream` can read it: its own memory, or a copy of `bytes` bytes.
  // The copy stays as it is until done() was called and the stream has come there. While a graph is
  // recorded, ArgumentError for host memory: a replay would read the copy again.
  const void* place(const GivenArray& array, std::size_t bytes, PyStream& stream, bool in_graph);
  // The work that reads what was placed since the last call is queued.
  void done(Stream& stream);

 private:
  struct Piece {
    Buffer device;
    Buffer pinned;  // on a GPU
    std::unique_ptr<Event> read;
    bool in_use = false;
  };
  Piece& free_piece(std::size_t bytes);

  std::shared_ptr<PyDevice> device_;
  std::vector<Piece> pieces_;
};

// [rows][columns] of a router's picks, checked but for what the Capturer checks itself.
TopkIds topk_ids_of(const GivenArray& ids, Uploads& uploads, PyStream& stream, bool in_graph);
TopkWeights weights_of(const GivenArray& weights, const TopkIds& ids, Uploads& uploads,
                       PyStream& stream, bool in_graph);

}  // namespace moetap::python
