// What the tests of the `shm` transport share.
#pragma once

#include <moetap/endpoint.h>
#include <moetap/read_transport.h>
#include <moetap/types.h>

#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <vector>

#include "test/ipc/child_process.h"
#include "test/ipc/stored.h"
#include "test/ipc/temporary_directory.h"
#include "test/ipc/test_endpoint.h"

namespace moetap::test {

inline constexpr Milliseconds kPatience{kPatienceMs};

// Ids of a row that tell which step and slot it is of.
inline std::vector<std::byte> row_of(const ModelShape& shape, Step step, Slot slot) {
  std::vector<std::byte> row(shape.row_bytes());
  for (std::size_t i = 0; i < shape.row_ids(); ++i) {
    const auto id = (step.value() * 131 + static_cast<std::uint64_t>(slot.value()) * 7 + i * 3) %
                    static_cast<std::uint64_t>(shape.num_experts());
    for (std::size_t b = 0; b < id_bytes(shape.id_type()); ++b) {
      row[i * id_bytes(shape.id_type()) + b] = static_cast<std::byte>(id >> (8 * b));
    }
  }
  for (std::size_t at = shape.weights_offset(); at < row.size(); ++at) {
    row[at] = static_cast<std::byte>(step.value() * 19 +
                                     static_cast<std::uint64_t>(slot.value()) * 5 + at);
  }
  return row;
}

inline std::vector<std::byte> rows_of(const ModelShape& shape, Step step,
                                      std::span<const Slot> slots) {
  std::vector<std::byte> rows;
  for (const Slot slot : slots) {
    const auto row = row_of(shape, step, slot);
    rows.insert(rows.end(), row.begin(), row.end());
  }
  return rows;
}
inline std::vector<std::byte> rows_of(const ModelShape& shape, Step step,
                                      std::span<const MarkedSlot> slots) {
  std::vector<Slot> plain;
  for (const MarkedSlot slot : slots) plain.push_back(slot.slot());
  return rows_of(shape, step, plain);
}

struct Read {
  std::vector<std::byte> rows;
  std::vector<RowState> states;
};

inline Read read(SlotReadTransport& reader, std::span<const Slot> slots, StepWindow window = {}) {
  Read result{std::vector<std::byte>(slots.size() * reader.shape().row_bytes()),
              std::vector<RowState>(slots.size())};
  reader.read(slots, {&window, 1}, result.rows, result.states);
  return result;
}

inline RowState state_of(SlotReadTransport& reader, Slot slot, StepWindow window = {}) {
  return read(reader, {&slot, 1}, window).states[0];
}

// Lock files of the wire layout go to a directory of the test's own, in this process and those that
// it starts.
class ShmTest : public EndpointTest {
 protected:
  TemporaryDirectory directory;
  ScopedVariable tmpdir{"TMPDIR", directory.path()};
};

}  // namespace moetap::test
