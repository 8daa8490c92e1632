// The device's memory of the current step, and the kernels that fill and empty it.
#pragma once

#include <moetap/device.h>
#include <moetap/shape.h>
#include <moetap/step.h>
#include <moetap/step_record.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace moetap {

// int16 [num_layers][max_tokens][top_k], at addresses that never change, written from row 0; beside
// it the step's header, which layers were captured in which step, which rows have a missing route,
// and the first fault. Everything that changes from step to step is read from device memory, so
// that capture() calls recorded into a graph serve every step (H13), and a layer whose capture did
// not run is known from its stamp (H3).
class DeviceCache {
 public:
  // `owner` names the model in this process ("<instance>/<dp_rank>"): a second cache for it is an
  // OwnedError while the first lives (H12).
  DeviceCache(Device& device, const ModelShape& shape, std::int64_t max_tokens, std::string owner);
  ~DeviceCache();
  DeviceCache(const DeviceCache&) = delete;
  DeviceCache& operator=(const DeviceCache&) = delete;

  // Device memory that a cache takes.
  static std::size_t bytes(const ModelShape& shape, std::int64_t max_tokens);

  const ModelShape& shape() const { return shape_; }
  std::int64_t max_tokens() const { return max_tokens_; }

  // See CaptureTransport. Work queued here and graphs that hold captures use the cache's memory:
  // it must be done before the cache is destroyed.
  void begin_step(Step step, std::int64_t num_tokens, std::int64_t dp_row, Stream& stream);
  void capture(int layer, const TopkIds& topk_ids, std::int64_t first_row, Stream& stream);

  // Writes the StepRecord of the current step into `record` (device memory): transposed to
  // [row][layer][top_k], narrowed, the slots cloned and checked against num_slots. The rows are
  // those of `tokens` (device memory, num_rows long, ascending), or of all num_rows tokens if null.
  void snapshot(const Slot* slot_mapping, std::int64_t num_rows, std::int64_t num_slots,
                std::byte* record, Stream& stream, const std::uint32_t* tokens = nullptr);

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
    std::size_t missing_step;  // uint64 [token]: the last step in which its row missed a route
    std::size_t routes;
  };

  template <class T>
  void launch_capture(int layer, const TopkIds& topk_ids, std::int64_t first_row, Stream& stream);
  template <class Id>
  void launch_snapshot(const Slot* slot_mapping, const std::uint32_t* tokens, std::int64_t num_rows,
                       std::int64_t num_slots, Slot* slots, std::byte* rows, Stream& stream);

  Owner owner_;
  ModelShape shape_;
  std::int64_t max_tokens_;
  Layout layout_;
  Buffer memory_;
};

}  // namespace moetap
