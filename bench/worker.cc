#include "bench/worker.h"

#include <moetap/host_device.h>
#include <moetap/transport.h>

#include <chrono>
#include <cstring>

namespace moetap::bench {
namespace {

std::unique_ptr<Transport> make_transport(std::string_view transport, Device& device,
                                          const Endpoint& endpoint) {
  return transport == "shm" ? make_shm_transport(device, endpoint)
                            : make_device_transport(device, endpoint);
}

Buffer upload_ids(Device& device, Stream& stream, const ModelShape& shape) {
  const auto ids = random_ids<std::int32_t>(shape, kMaxTokens * shape.row_ids());
  return upload(device, stream, ids.data(), ids.size() * sizeof ids[0]);
}

Buffer upload_slots(Device& device, Stream& stream, std::int64_t num_slots) {
  const SlotMappings mappings(num_slots);
  return upload(device, stream, mappings.slots().data(), mappings.slots().size_bytes());
}

}  // namespace

Buffer upload(Device& device, Stream& stream, const void* from, std::size_t bytes) {
  Buffer pinned = device.allocate_pinned(bytes);
  std::memcpy(pinned.data(), from, bytes);
  Buffer memory = device.allocate(bytes);
  stream.copy(memory.data(), pinned.data(), bytes);
  stream.synchronize();
  return memory;
}

Worker::Worker(std::string_view transport, const Endpoint& endpoint)
    : shape_(endpoint.shape),
      device_(make_host_device()),
      stream_(device_->make_stream()),
      topk_ids_(upload_ids(*device_, *stream_, shape_)),
      slots_(upload_slots(*device_, *stream_, endpoint.num_slots)),
      capturer_(make_transport(transport, *device_, endpoint)) {
  for (const int layer : shape_.moe_layers()) capturer_.bind(layer);
}

Step Worker::forward(std::int64_t tokens, std::optional<std::span<const TokenRange>> wanted) {
  capturer_.begin_step({.step = ++step_, .num_tokens = tokens, .wanted = wanted}, *stream_);
  capture_layers(tokens);
  stream_->synchronize();
  return step_;
}

double Worker::time_captures(std::int64_t tokens) {
  capturer_.begin_step(
      {.step = ++step_, .num_tokens = tokens, .wanted = std::span<const TokenRange>()}, *stream_);
  stream_->synchronize();
  const auto start = std::chrono::steady_clock::now();
  capture_layers(tokens);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  capturer_.publish(nullptr, *stream_);
  stream_->synchronize();
  return took.count();
}

void Worker::capture_layers(std::int64_t tokens) {
  const auto top_k = static_cast<std::size_t>(shape_.top_k());
  std::size_t first = 0;
  for (const int layer : shape_.moe_layers()) {
    capturer_.capture(layer,
                      {.data = topk_ids_.as<std::int32_t>() + first,
                       .type = IdType::int32,
                       .rows = tokens,
                       .columns = shape_.top_k(),
                       .row_stride = shape_.top_k()},
                      *stream_);
    first += kMaxTokens * top_k;
  }
}

void Worker::publish(std::int64_t offset) {
  capturer_.publish(slots_.as<Slot>() + offset, *stream_);
}

}  // namespace moetap::bench
