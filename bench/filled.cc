#include "filled.h"

#include <moetap/channel.h>
#include <moetap/readers.h>
#include <moetap/shm_writer.h>
#include <moetap/step_record.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "endpoint.h"

namespace moetap::bench {
namespace {

using Publish = std::function<void(Step, std::span<const Slot>, std::span<const std::byte>)>;

Publish shm_publisher(const Endpoint& endpoint) {
  auto writer = std::make_shared<ShmWriter>(endpoint);
  return [writer](Step step, std::span<const Slot> slots, std::span<const std::byte> rows) {
    writer->publish(step, slots, rows);
  };
}

// What the device transport's copy leaves in the ring.
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
    std::ranges::copy(slots, record.slots.begin());
    std::ranges::copy(rows, record.rows.begin());
    producer->commit({.kind = Descriptor::Kind::step, .step = step, .num_tokens = tokens});
  };
}

}  // namespace

struct FilledReader::State {
  State(std::string_view transport, const Endpoint& endpoint)
      : mappings(endpoint.num_slots),
        publish(transport == "shm" ? shm_publisher(endpoint) : device_publisher(endpoint)),
        reader(transport == "shm" ? make_shm_reader(endpoint) : make_device_reader(endpoint)),
        source(random_rows(endpoint.shape, kMaxTokens)),
        rows(source.size()),
        states(kMaxTokens) {}

  std::size_t bytes(std::int64_t tokens) const {
    return static_cast<std::size_t>(tokens) * reader.shape().row_bytes();
  }

  SlotMappings mappings;
  Publish publish;
  Reader reader;
  std::vector<std::byte> source;
  std::vector<std::byte> rows;
  std::vector<RowState> states;
  Step step = 0;
};

FilledReader::FilledReader(std::string_view transport, const ModelShape& shape,
                           std::int64_t num_slots)
    : state_(std::make_unique<State>(transport, endpoint(shape, num_slots))) {
  for (std::uint64_t i = 0; i < kWorkingSet / kMaxTokens; ++i) publish(i, kMaxTokens);
}

FilledReader::~FilledReader() = default;

void FilledReader::publish(std::uint64_t i, std::int64_t tokens) {
  State& s = *state_;
  s.publish(++s.step, s.mappings.step(i, tokens), std::span(s.source).first(s.bytes(tokens)));
  s.reader.wait_for(s.step, Milliseconds(0));
}

void FilledReader::read(std::uint64_t i, std::int64_t tokens) {
  State& s = *state_;
  const StepWindow window{.first = 1, .last = s.step};
  s.reader.read(s.mappings.step(i, tokens), {&window, 1}, std::span(s.rows).first(s.bytes(tokens)),
                std::span(s.states).first(static_cast<std::size_t>(tokens)));
}

bool FilledReader::all_present(std::int64_t tokens) const {
  return std::count(state_->states.begin(), state_->states.begin() + tokens, RowState::present) ==
         tokens;
}

const ModelShape& FilledReader::shape() const { return state_->reader.shape(); }

}  // namespace moetap::bench
