#include "bench/publisher.h"

#include <algorithm>
#include <memory>

#include "ipc/internal/channel.h"
#include "ipc/internal/shm_writer.h"
#include "lib/internal/step_record.h"

namespace moetap::bench {
namespace {

Publish shm_publisher(const Endpoint& endpoint) {
  auto writer = std::make_shared<ShmWriter>(endpoint);
  return [writer](Step step, std::span<const Slot> slots, std::span<const std::byte> rows) {
    writer->publish(step, unmarked(slots), rows);
  };
}

// Writes what the device transport's copy leaves in the ring.
Publish device_publisher(const Endpoint& endpoint) {
  auto producer = std::make_shared<ChannelProducer>(endpoint);
  return [producer, shape = endpoint.shape](Step step, std::span<const Slot> slots,
                                            std::span<const std::byte> rows) {
    const auto tokens = std::ssize(slots);
    const StepRecordView record(shape, tokens, producer->acquire());
    *record.report = {};
    record.report->step = step;
    record.report->num_tokens = tokens;
    std::ranges::fill(record.captured, step);
    std::ranges::copy(unmarked(slots), record.slots.begin());
    std::ranges::copy(rows, record.rows.begin());
    producer->commit({.kind = Descriptor::Kind::step, .step = step, .num_tokens = tokens});
  };
}

}  // namespace

Publish make_publisher(std::string_view transport, const Endpoint& endpoint) {
  return transport == "shm" ? shm_publisher(endpoint) : device_publisher(endpoint);
}

}  // namespace moetap::bench
