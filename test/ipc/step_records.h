// Step records as a worker's device writes them, with rows that tell who wrote them.
#pragma once

#include <moetap/endpoint.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "ipc/internal/channel.h"
#include "lib/internal/step_record.h"
#include "test/ipc/stored.h"

namespace moetap::test {

// The row that `step` writes for its token `i`. Valid ids for shapes of 16 experts or more.
inline std::vector<std::byte> row_of(Step step, std::size_t i, std::size_t row_bytes) {
  std::vector<std::byte> row(row_bytes);
  for (std::size_t j = 0; j < row_bytes; ++j) {
    row[j] = static_cast<std::byte>((step.value() * 7 + i * 5 + j * 3) % 16);
  }
  return row;
}

// Fills a record without a fault. The view is for spoiling it.
inline StepRecordView write_record(std::span<std::byte> bytes, const ModelShape& shape, Step step,
                                   const Stored& slots) {
  StepRecordView record(shape, static_cast<std::int64_t>(slots.size()), bytes);
  *record.report = {};
  record.report->step = step;
  record.report->num_tokens = static_cast<std::int64_t>(slots.size());
  std::ranges::fill(record.captured, step);
  std::ranges::copy(slots, record.slots.begin());
  for (std::size_t i = 0; i < slots.size(); ++i) {
    std::ranges::copy(row_of(step, i, shape.row_bytes()),
                      record.rows.begin() + static_cast<std::ptrdiff_t>(i * shape.row_bytes()));
  }
  return record;
}

inline Descriptor describe(Descriptor::Kind kind, Step step, std::size_t num_tokens) {
  return {.kind = kind, .step = step, .num_tokens = static_cast<std::int64_t>(num_tokens)};
}

inline void send_step(ChannelProducer& producer, const ModelShape& shape, Step step,
                      const Stored& slots) {
  write_record(producer.acquire(), shape, step, slots);
  producer.commit(describe(Descriptor::Kind::step, step, slots.size()));
}

}  // namespace moetap::test
