// The routes of the current step in device memory, and the launches that fill and empty it.
#pragma once

#include <moetap/device.h>
#include <moetap/route_sink.h>
#include <moetap/shape.h>
#include <moetap/step.h>
#include <moetap/topk_ids.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "lib/internal/step_record.h"

namespace moetap {

struct ClearedLayers;

// int16 [num_layers][max_tokens][top_k], at addresses that never change, written from row 0, and as
// many weights if the shape has some. Beside it are the step's header, the step of each layer's
// last capture, the rows with a missing route, and the first fault. Everything that changes per
// step is read from device memory, so that capture() calls recorded into a graph serve every step
// (H13). A layer whose capture did not run is detected by its stamp (H3).
class DeviceCache {
 public:
  // `owner` names the model in this process ("<instance>/<dp_rank>"): a second cache for it is an
  // OwnedError while the first exists (H12).
  DeviceCache(Device& device, const ModelShape& shape, std::int64_t max_tokens, std::string owner);
  ~DeviceCache();
  DeviceCache(const DeviceCache&) = delete;
  DeviceCache& operator=(const DeviceCache&) = delete;

  // The device memory that a cache takes, in bytes.
  static std::size_t bytes(const ModelShape& shape, std::int64_t max_tokens);

  const ModelShape& shape() const { return shape_; }
  std::int64_t max_tokens() const { return max_tokens_; }

  // Queued work and graphs with captures use the cache's memory. They must be done before the cache
  // is destroyed.

  // From now on compares all of a token's picks at a layer, also on a host:
  // CapturerOptions::compare_all_picks.
  void compare_all_picks();

  // Writes the step's number, token count and first row of topk_ids to device memory (`dp_row`:
  // where this rank's rows start in a concatenated layout). Ordered on `stream`, and after all work
  // of the previous step on its own stream, which may be a different one.
  void begin_step(Step step, std::int64_t num_tokens, std::int64_t dp_row, Stream& stream);
  // Values of the step that was begun last.
  Step step() const { return step_; }
  std::int64_t num_tokens() const { return num_tokens_; }

  // Queues the copy of one layer's picks into the cache. `layer` is an index into the row. A
  // `first_row` >= 0 is fixed at this call, and so in a graph; kRowFromStep reads begin_step's
  // `dp_row` from device memory when the copy runs. Allowed while `stream` records a graph.
  // ArgumentError for picks that kernels cannot read, or that do not match the shape.
  static constexpr std::int64_t kRowFromStep = -1;
  void capture(int layer, const TopkIds& topk_ids, std::int64_t first_row, Stream& stream);

  // For a kernel that captures this layer itself, in place of capture(). This rank's rows of the
  // kernel's topk_ids are [first_row, end_row), even if the kernel has more. `shared_columns` picks
  // after the first top_k are dropped. A pick that the kernel does not put is a missing route: the
  // layer's ids are cleared from the next begin_step() on. Earlier steps are not affected.
  // StateError if a third-party kernel writes the layer's routes, or if the first sink is taken in
  // an open step after a capture() of the layer. ArgumentError for models of over 65,535 experts,
  // where every 16-bit value is a valid id.
  static constexpr std::int64_t kAllRows = std::numeric_limits<std::int64_t>::max();
  RouteSink sink(int layer, std::int64_t first_row, std::int64_t end_row, int shared_columns = 0);

  // This layer's part of the cache. In each step, after begin_step(), a third-party kernel writes
  // the picks of this rank's tokens there, from row 0 on. From now on nothing else may capture the
  // layer. Tokens whose rows the kernel does not write have a missing route. If it writes no row,
  // the layer was not captured (H3). A second call returns the same. ArgumentError for models of
  // over 32,768 experts, and for shapes with weights: any bits are a valid weight, so an older
  // step's could not be detected.
  RouteOutput route_output(int layer);

  // Writes the StepRecord of the current step into `record` (device memory) with one launch:
  // transposed to [row][layer][top_k], narrowed, with weights after the ids, the slots copied and
  // checked against num_slots. The rows are those of `tokens` (device memory, num_rows elements,
  // ascending), or of all num_rows tokens if null.
  void snapshot(const Slot* slot_mapping, std::int64_t num_rows, std::int64_t num_slots,
                std::byte* record, Stream& stream, const std::uint32_t* tokens = nullptr);

  // Ends the step: its work is what was queued on `stream` up to now.
  void end_step(Stream& stream);
  // As end_step(), also if the stream accepts no work: it records a graph, or the device is broken.
  void abandon_step(Stream& stream) noexcept;

 private:
  // An entry of the process's register of caches.
  class Owner {
   public:
    explicit Owner(std::string name);
    ~Owner();
    Owner(const Owner&) = delete;
    Owner& operator=(const Owner&) = delete;

   private:
    std::string name_;
  };

  // The parts of memory_, in bytes from its start.
  struct Layout {
    Layout(const ModelShape& shape, std::int64_t max_tokens);
    std::size_t bytes = 0;
    std::size_t step;
    std::size_t captured;      // uint64 [layer]: the step of its last capture
    std::size_t writer;        // uint8 [layer]: ClearedLayers::Writer
    std::size_t missing_step;  // uint64 [token]: the last step in which its row missed a route
    std::size_t routes;
    std::size_t weights;
  };

  void require_layer(int layer) const;
  void require_own(int layer) const;
  void set_writer(int layer, std::uint8_t writer);
  void tell_writers(Stream& stream);
  void load_kernels();
  RouteSink layer_sink(int layer, std::int64_t first_row, std::int64_t end_row,
                       int shared_columns) const;
  ClearedLayers cleared_layers() const;
  // One launch for all layers that other kernels write, if any.
  template <class Kernel>
  void launch_cleared(std::int64_t num_tokens, Stream& stream);
  template <class T>
  void launch_capture(int layer, const TopkIds& topk_ids, std::int64_t first_row, Stream& stream);
  template <class Id>
  void launch_snapshot(const Slot* slot_mapping, const std::uint32_t* tokens, std::int64_t num_rows,
                       std::int64_t num_slots, std::byte* record, Stream& stream);

  Owner owner_;
  Device& device_;
  ModelShape shape_;
  std::int64_t max_tokens_;
  Layout layout_;
  Buffer memory_;
  std::unique_ptr<Event> used_;  // recorded after all work of the last step
  Distinct distinct_;
  std::vector<std::uint8_t> writer_;  // [layer]: the writers that the device uses from the next
                                      // step on
  bool writers_changed_ = false;      // since they were last sent to the device
  std::vector<bool> copied_;          // [layer]: whether capture() has written it
  bool open_ = false;                 // a step is open, whose layers were cleared if needed
  Step step_ = 0;
  std::int64_t num_tokens_ = 0;
};

}  // namespace moetap
