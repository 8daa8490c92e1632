// A pretended model: a router whose picks are a function of the step, row, layer and k, so that any
// process can tell what a row must hold, and its topk_ids on a device.
#pragma once

#include <moetap/device.h>
#include <moetap/shape.h>
#include <moetap/step.h>
#include <moetap/topk_ids.h>

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

namespace moetap::test {

// Any ids of the model, distinct in a row of a layer, or with `missing_routes` in about every tenth
// row one that is missing (-1).
struct Router {
  ModelShape shape;
  bool missing_routes = false;

  std::int64_t pick(Step step, std::int64_t row, int layer, int k) const;
  bool misses_route(Step step, std::int64_t row) const;
  // The weight of a pick, as the upper bits of a float32: any at all, NaN too.
  std::uint32_t weight(Step step, std::int64_t row, int layer, int k) const;
  // A row as it must be published; only of one that misses no route.
  std::vector<std::byte> row(Step step, std::int64_t row) const;
};

class Model {
 public:
  // topk_ids of up to max_rows rows; `shared` more columns hold ids that are no expert's, so does
  // the padding of rows that are `stride_padding` elements further apart. If the shape has weights,
  // they are of its type, or of float32 if `wide_weights`.
  Model(Device& device, Router router, std::int64_t max_rows, IdType type = IdType::int32,
        int shared = 0, int stride_padding = 0, bool wide_weights = false);

  // Queues the router's picks of these rows for a step; every other row becomes ids that are no
  // expert's.
  void route(Step step, std::span<const TokenRange> rows, Stream& stream);
  void route(Step step, std::int64_t rows, Stream& stream) {
    const TokenRange all{0, rows};
    route(step, {&all, 1}, stream);
  }
  // The next route() puts this value there instead of the router's.
  void spoil(int layer, std::int64_t row, int k, std::int64_t value);

  // For Capturer::capture. Its address never changes.
  TopkIds topk_ids(int layer, std::int64_t rows) const;

 private:
  struct Spoiled {
    int layer;
    std::int64_t row;
    int k;
    std::int64_t value;
  };

  std::int64_t layer_ids() const { return max_rows_ * stride_; }
  void write_row(const Buffer& to, Step step, std::int64_t row) const;
  void write(std::byte* to, std::int64_t index, std::int64_t id) const;
  void route_weights(Step step, std::span<const TokenRange> rows, Stream& stream);

  Device& device_;
  Router router_;
  std::int64_t max_rows_;
  IdType type_;
  std::int64_t columns_;
  std::int64_t stride_;
  Buffer ids_;  // [layer][row][stride]
  WeightType weight_type_;
  Buffer weights_;              // the same
  std::deque<Buffer> uploads_;  // sources of copies, which must live until those are done
  std::vector<Spoiled> spoiled_;
};

}  // namespace moetap::test
