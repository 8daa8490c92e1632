#include "bench/filled.h"

#include <moetap/read_transport.h>

#include <algorithm>
#include <vector>

#include "bench/endpoint.h"
#include "bench/publisher.h"

namespace moetap::bench {
struct FilledReader::State {
  State(std::string_view transport, const Endpoint& endpoint)
      : mappings(endpoint.num_slots),
        publish(make_publisher(transport, endpoint)),
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
