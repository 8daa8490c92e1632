#include "test/gpu/model.h"

#include <moetap/topk_ids.h>

#include <cstring>
#include <numeric>
#include <utility>

namespace moetap::test {
namespace {

// splitmix64: https://prng.di.unimi.it/splitmix64.c
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

std::uint64_t hash(Step step, std::int64_t row, int layer, int k) {
  return mix(
      mix(mix(mix(step.value()) + static_cast<std::uint64_t>(row)) + static_cast<unsigned>(layer)) +
      static_cast<unsigned>(k));
}

}  // namespace

bool Router::misses_route(Step step, std::int64_t row) const {
  return missing_routes && hash(step, row, -1, -1) % 10 == 0;
}

std::int64_t Router::pick(Step step, std::int64_t row, int layer, int k) const {
  // Equal steps from any first one, which go round all experts before one comes again.
  const auto experts = static_cast<std::uint64_t>(shape.num_experts());
  const std::uint64_t number = hash(step, row, layer, 0);
  std::uint64_t stride = 1 + (number >> 32) % experts;
  while (std::gcd(stride, experts) != 1) ++stride;
  const auto some_layer =
      static_cast<int>(hash(step, row, -1, 0) % static_cast<std::uint64_t>(shape.num_layers()));
  if (misses_route(step, row) && layer == some_layer && k == 0) return -1;
  return static_cast<std::int64_t>((number + static_cast<std::uint64_t>(k) * stride) % experts);
}

// Of a float32 that is rounded to bfloat16 the lower half makes no difference, then.
std::uint32_t Router::weight(Step step, std::int64_t row, int layer, int k) const {
  const auto bits = static_cast<std::uint32_t>(hash(step, row, layer, k + 1000) >> 32);
  return shape.weight_type() == WeightType::bfloat16 ? bits & 0xFFFF'0000 : bits;
}

std::vector<std::byte> Router::row(Step step, std::int64_t row) const {
  std::vector<std::byte> bytes(shape.row_bytes());  // zeros between ids and weights
  std::byte* to = bytes.data();
  for (int layer = 0; layer < shape.num_layers(); ++layer) {
    for (int k = 0; k < shape.top_k(); ++k, to += id_bytes(shape.id_type())) {
      const auto id = static_cast<std::uint16_t>(pick(step, row, layer, k));
      std::memcpy(to, &id, id_bytes(shape.id_type()));  // little-endian, as all we run on
    }
  }
  const std::size_t width = weight_bytes(shape.weight_type());
  if (width == 0) return bytes;
  to = bytes.data() + shape.weights_offset();
  for (int layer = 0; layer < shape.num_layers(); ++layer) {
    for (int k = 0; k < shape.top_k(); ++k, to += width) {
      const std::uint32_t bits = weight(step, row, layer, k) >> (32 - 8 * width);
      std::memcpy(to, &bits, width);
    }
  }
  return bytes;
}

Model::Model(Device& device, Router router, std::int64_t max_rows, IdType type, int shared,
             int stride_padding, bool wide_weights)
    : device_(device),
      router_(std::move(router)),
      max_rows_(max_rows),
      type_(type),
      columns_(router_.shape.top_k() + shared),
      stride_(columns_ + stride_padding),
      ids_(device.allocate(static_cast<std::size_t>(router_.shape.num_layers() * layer_ids()) *
                           id_bytes(type))),
      weight_type_(wide_weights ? WeightType::float32 : router_.shape.weight_type()),
      weights_(device.allocate(static_cast<std::size_t>(router_.shape.num_layers() * layer_ids()) *
                               weight_bytes(weight_type_))) {}

void Model::write(std::byte* to, std::int64_t index, std::int64_t id) const {
  std::memcpy(to + static_cast<std::size_t>(index) * id_bytes(type_), &id, id_bytes(type_));
}

void Model::route(Step step, std::span<const TokenRange> rows, Stream& stream) {
  Buffer& upload = uploads_.emplace_back(device_.allocate_pinned(ids_.size()));
  // As an id it is a fault, if the type has a number that is no expert's.
  std::memset(upload.data(), 0x7F, upload.size());
  for (const TokenRange range : rows) {
    for (std::int64_t row = range.start; row < range.end; ++row) write_row(upload, step, row);
  }
  for (const Spoiled& s : spoiled_) {
    write(upload.data(), s.layer * layer_ids() + s.row * stride_ + s.k, s.value);
  }
  spoiled_.clear();
  stream.copy(ids_.data(), upload.data(), upload.size());
  if (weight_type_ != WeightType::none) route_weights(step, rows, stream);
}

void Model::route_weights(Step step, std::span<const TokenRange> rows, Stream& stream) {
  Buffer& upload = uploads_.emplace_back(device_.allocate_pinned(weights_.size()));
  std::memset(upload.data(), 0x7F, upload.size());
  const std::size_t width = weight_bytes(weight_type_);
  const bool rounded = weight_type_ != router_.shape.weight_type();
  for (const TokenRange range : rows) {
    for (std::int64_t row = range.start; row < range.end; ++row) {
      for (int layer = 0; layer < router_.shape.num_layers(); ++layer) {
        for (int k = 0; k < router_.shape.top_k(); ++k) {
          std::uint32_t bits = router_.weight(step, row, layer, k);
          // Not of what would become another NaN, or none.
          if (rounded && (bits & 0x7F80'0000) != 0x7F80'0000) bits |= 0x1234;
          bits >>= 32 - 8 * width;
          const std::int64_t at = layer * layer_ids() + row * stride_ + k;
          std::memcpy(upload.data() + static_cast<std::size_t>(at) * width, &bits, width);
        }
      }
    }
  }
  stream.copy(weights_.data(), upload.data(), upload.size());
}

void Model::write_row(const Buffer& to, Step step, std::int64_t row) const {
  for (int layer = 0; layer < router_.shape.num_layers(); ++layer) {
    for (int k = 0; k < router_.shape.top_k(); ++k) {
      write(to.data(), layer * layer_ids() + row * stride_ + k, router_.pick(step, row, layer, k));
    }
  }
}

void Model::spoil(int layer, std::int64_t row, int k, std::int64_t value) {
  spoiled_.push_back({layer, row, k, value});
}

TopkIds Model::topk_ids(int layer, std::int64_t rows) const {
  return {.data = ids_.data() + static_cast<std::size_t>(layer * layer_ids()) * id_bytes(type_),
          .type = type_,
          .rows = rows,
          .columns = columns_,
          .row_stride = stride_,
          .weights = {.data = weights_.data() + static_cast<std::size_t>(layer * layer_ids()) *
                                                    weight_bytes(weight_type_),
                      .type = weight_type_,
                      .row_stride = stride_}};
}

}  // namespace moetap::test
