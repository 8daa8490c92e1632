#include <moetap/error.h>
#include <moetap/stages.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "ipc/internal/slot_lists.h"
#include "ipc/reader/joined_readers.h"
#include "lib/internal/number_format.h"

namespace moetap {
namespace {

class PartReader final : public detail::JoinedReaders {
 public:
  explicit PartReader(std::vector<std::unique_ptr<SlotReadTransport>> parts);

  const ModelShape& shape() const override { return first().shape(); }
  void read(std::span<const Slot> slots, std::span<const StepWindow> windows,
            std::span<std::byte> rows, std::span<RowState> states) override;

  // Put into one part, no matter which: its step is greater than any that the other parts have
  // there.
  void put(Step step, std::span<const Slot> slots, std::span<const std::byte> rows,
           std::span<const RowState> states) override {
    first().put(step, slots, rows, states);
  }

 private:
  void take(std::span<const Slot> slots, std::size_t i, std::span<std::byte> rows,
            std::span<RowState> states) const;

  // Buffers of the current read; they keep the size of the largest read.
  std::vector<std::byte> part_rows_;
  std::vector<RowState> part_states_;
};

PartReader::PartReader(std::vector<std::unique_ptr<SlotReadTransport>> parts) {
  if (parts.empty()) throw ArgumentError("no parts to join; give one a tensor-parallel rank");
  for (std::size_t i = 0; i < parts.size(); ++i) {
    add(std::move(parts[i]), fmt::format("part {}", i));
    const ModelShape& own = members().back().reader->shape();
    if (own != shape()) {
      throw ArgumentError(
          fmt::format("part {} has {}, part 0 has {} ({}): all parts are rows of one model", i,
                      own.to_string(), shape().to_string(), own.difference(shape())));
    }
  }
}

void PartReader::read(std::span<const Slot> slots, std::span<const StepWindow> windows,
                      std::span<std::byte> rows, std::span<RowState> states) {
  const std::size_t row_bytes = shape().row_bytes();
  check_read_sizes(slots.size(), windows.size(), rows.size(), states.size(), row_bytes);
  for (const StepWindow& window : windows) {
    if (window.first == window.last) continue;
    throw ArgumentError(
        fmt::format("read of rows of steps {} to {} from ranks that publish a part of the tokens "
                    "each: where the latest of them failed, another rank still has an older row. "
                    "Read with the one step that wrote a row, as a Ledger's plans do",
                    window.first, window.last));
  }
  first().read(slots, windows, rows, states);
  part_rows_.resize(std::max(part_rows_.size(), rows.size()));
  part_states_.resize(slots.size());
  for (auto part = members().begin() + 1; part != members().end(); ++part) {
    part->reader->read(slots, windows, std::span(part_rows_).first(rows.size()), part_states_);
    for (std::size_t i = 0; i < slots.size(); ++i) take(slots, i, rows, states);
  }
}

// Merges one more part's row and state.
void PartReader::take(std::span<const Slot> slots, std::size_t i, std::span<std::byte> rows,
                      std::span<RowState> states) const {
  const std::size_t row_bytes = shape().row_bytes();
  switch (part_states_[i]) {
    case RowState::present:
      if (states[i] == RowState::present) {
        throw MismatchError(
            fmt::format("two ranks published a row of slot {} in one step: the parts of a step "
                        "must not overlap, and padding is not published",
                        slots[i]));
      }
      std::memcpy(rows.data() + i * row_bytes, part_rows_.data() + i * row_bytes, row_bytes);
      states[i] = RowState::present;
      break;
    case RowState::clobbered:
      if (states[i] != RowState::present) states[i] = RowState::clobbered;
      break;
    case RowState::stale:
      if (states[i] == RowState::missing) states[i] = RowState::stale;
      break;
    case RowState::missing:
    case RowState::unverified:
      break;
  }
}

}  // namespace

std::unique_ptr<SlotReadTransport> join_parts(
    std::vector<std::unique_ptr<SlotReadTransport>> parts) {
  return std::make_unique<PartReader>(std::move(parts));
}

}  // namespace moetap
