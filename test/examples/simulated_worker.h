// A worker without a device or a second process: runs plans into rows by slot, which a Reader
// then reads. For tests of the scheduler and the verifier.
#pragma once

#include <moetap/reader.h>
#include <moetap/shape.h>
#include <moetap/transport.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "router.h"
#include "scheduler.h"

namespace demo {

// Rows and stamps of all slots.
struct SlotRows {
  SlotRows(const moetap::ModelShape& model, std::int64_t num_slots)
      : shape(model),
        rows(static_cast<std::size_t>(num_slots) * model.row_bytes()),
        stamps(static_cast<std::size_t>(num_slots)) {}

  std::byte* row(Slot slot) { return &rows[static_cast<std::size_t>(slot) * shape.row_bytes()]; }

  moetap::ModelShape shape;
  std::vector<std::byte> rows;
  std::vector<Step> stamps;
};

class SlotRowsReader : public moetap::SlotReadTransport {
 public:
  explicit SlotRowsReader(SlotRows& source) : source_(source) {}
  const moetap::ModelShape& shape() const override { return source_.shape; }
  std::int64_t num_slots() const override { return std::ssize(source_.stamps); }
  Step last_step() override {
    return *std::max_element(source_.stamps.begin(), source_.stamps.end());
  }
  void wait_for(Step, moetap::Milliseconds) override {}
  void read(std::span<const Slot> slots, std::span<const moetap::StepWindow> windows,
            std::span<std::byte> rows, std::span<moetap::RowState> states) override {
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const Step stamp = source_.stamps.at(static_cast<std::size_t>(slots[i]));
      states[i] = moetap::row_state(stamp, windows.size() == 1 ? windows[0] : windows[i]);
      std::memcpy(&rows[i * shape().row_bytes()], source_.row(slots[i]), shape().row_bytes());
    }
  }
  void put(Step step, std::span<const Slot> slots, std::span<const std::byte> rows) override {
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const Slot slot = slots[i] < 0 ? ~slots[i] : slots[i];
      source_.stamps.at(static_cast<std::size_t>(slot)) = slots[i] < 0 ? 0 : step;
      std::memcpy(source_.row(slot), &rows[i * shape().row_bytes()], shape().row_bytes());
    }
  }

 private:
  SlotRows& source_;
};

// Computes the rows of a plan (of a model with at most 256 experts), and samples.
inline std::vector<Token> run_plan(const StepPlan& plan, SlotRows& memory) {
  const Router router(memory.shape);
  std::vector<Token> sampled;
  std::size_t i = 0;
  for (const PlanSpan& span : plan.spans) {
    for (std::int64_t p = span.position; p < span.position + span.count; ++p, ++i) {
      auto* ids = reinterpret_cast<std::uint8_t*>(memory.row(plan.slots[i]));
      for (const int layer : memory.shape.moe_layers()) {
        router(plan.tokens[i], p, layer, ids);
        ids += memory.shape.top_k();
      }
      memory.stamps[static_cast<std::size_t>(plan.slots[i])] = plan.step;
    }
    if (span.sample != 0) sampled.push_back(sampled_token(span.seed, span.position + span.count));
  }
  return sampled;
}

}  // namespace demo
