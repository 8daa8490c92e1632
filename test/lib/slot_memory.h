// A slot buffer in plain memory, and the worker that writes to it, for tests of what reads it.
#pragma once

#include <moetap/error.h>
#include <moetap/reader.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace moetap::test {

// A row is four uint8 ids, whatever they are: room for one number, so that every row can be told
// from all others.
inline ModelShape number_shape() { return ModelShape::uniform(2, 2, 256).with_repeated_experts(); }

inline std::vector<std::byte> number_row(std::uint32_t number) {
  std::vector<std::byte> row(sizeof number);
  std::memcpy(row.data(), &number, sizeof number);
  return row;
}

inline std::uint32_t number_at(const Routes& routes, std::int64_t position) {
  std::uint32_t number;
  std::memcpy(&number, routes.row(position).data(), sizeof number);
  return number;
}

class SlotMemory final : public SlotReadTransport {
 public:
  // `shape`: of four bytes a row.
  explicit SlotMemory(std::int64_t num_slots, ModelShape shape = number_shape())
      : shape_(std::move(shape)),
        stamps_(static_cast<std::size_t>(num_slots)),
        rows_(stamps_.size()) {}

  // --- the worker's side: `step` is over
  void publish(Step step, const std::vector<std::pair<Slot, std::uint32_t>>& rows) {
    for (const auto& [slot, number] : rows) {
      stamps_.at(static_cast<std::size_t>(slot.value())) = step;
      rows_.at(static_cast<std::size_t>(slot.value())) = number;
    }
    last_ = step;
  }
  void fail(Step step, const std::vector<Slot>& slots) {
    for (const Slot slot : slots) stamps_.at(static_cast<std::size_t>(slot.value())) = 0;
    failed_[step] = "a layer was not captured";
    last_ = step;
  }

  // --- the scheduler's side
  const ModelShape& shape() const override { return shape_; }
  std::int64_t num_slots() const override { return static_cast<std::int64_t>(stamps_.size()); }
  Step poll() override { return last_; }
  void wait_for(Step step, Milliseconds) override {
    if (step > last_) throw TimeoutError("step " + std::to_string(step.value()) + " did not come");
    if (const auto found = failed_.find(step); found != failed_.end()) {
      throw StepFailed(step, found->second);
    }
  }
  void read(std::span<const Slot> slots, std::span<const StepWindow> windows,
            std::span<std::byte> rows, std::span<RowState> states) override {
    if (windows.size() != 1 && windows.size() != slots.size()) throw ArgumentError("windows");
    if (rows.size() != slots.size() * 4 || states.size() != slots.size()) {
      throw ArgumentError("sizes");
    }
    ++reads;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const auto slot = static_cast<std::size_t>(slots[i].value());
      states[i] = unstamped ? RowState::unverified
                            : row_state(stamps_.at(slot), windows[windows.size() == 1 ? 0 : i]);
      const bool visible = unstamped || states[i] == RowState::present;
      const std::uint32_t number = visible ? rows_.at(slot) : 0xFFFF'FFFF;
      std::memcpy(rows.data() + i * sizeof number, &number, sizeof number);
    }
  }
  void stamps(std::span<const Slot> slots, std::span<Step> written) override {
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const Step stamp = stamps_.at(static_cast<std::size_t>(slots[i].value()));
      written[i] = unstamped || keeps_stamps_to_itself ? Step() : stamp;
    }
  }
  std::optional<Lease> lend(std::span<const Slot> slots, std::span<const StepWindow> windows,
                            std::span<const std::byte*> rows, std::span<RowState> states,
                            const std::string& holder) override {
    if (!lends) return std::nullopt;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const auto slot = static_cast<std::size_t>(slots[i].value());
      states[i] = row_state(stamps_.at(slot), windows[windows.size() == 1 ? 0 : i]);
      rows[i] = states[i] == RowState::present ? reinterpret_cast<const std::byte*>(&rows_[slot])
                                               : nullptr;
    }
    return leases.lend(holder);
  }
  void put(Step step, std::span<const Slot> slots, std::span<const std::byte> rows,
           std::span<const RowState> states) override {
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const auto slot = static_cast<std::size_t>(slots[i].value());
      const bool given = states.empty() || has_routes(states[i]);
      if (stamps_.at(slot) > step) continue;
      stamps_.at(slot) = given ? step : Step();
      std::memcpy(&rows_.at(slot), rows.data() + i * sizeof(std::uint32_t), sizeof(std::uint32_t));
    }
  }

  int reads = 0;
  bool unstamped = false;  // as the wire-compatible layout
  bool keeps_stamps_to_itself = false;
  bool lends = false;
  LeaseBook leases;

 private:
  ModelShape shape_;
  std::vector<Step> stamps_;
  std::vector<std::uint32_t> rows_;
  std::map<Step, std::string> failed_;
  Step last_ = 0;
};

}  // namespace moetap::test
