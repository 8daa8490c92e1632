// A worker without a device or a second process: runs plans into rows by slot, which a Reader
// then reads. For tests of the scheduler.
#pragma once

#include <moetap/read_transport.h>
#include <moetap/reader.h>
#include <moetap/shape.h>
#include <moetap/types.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "examples/simulator/batch.h"
#include "examples/simulator/protocol.h"
#include "examples/simulator/router.h"

namespace demo {

// Rows and stamps of all slots.
struct SlotRows {
  SlotRows(const moetap::ModelShape& model, std::int64_t num_slots)
      : shape(model),
        rows(static_cast<std::size_t>(num_slots) * model.row_bytes()),
        stamps(static_cast<std::size_t>(num_slots)) {}

  std::byte* row(Slot slot) {
    return &rows[static_cast<std::size_t>(slot.value()) * shape.row_bytes()];
  }

  moetap::ModelShape shape;
  std::vector<std::byte> rows;
  std::vector<Step> stamps;
  Step last_step = 0;
};

// A caller that waits for a step runs the next ones.
class SlotRowsReader : public moetap::SlotReadTransport {
 public:
  SlotRowsReader(SlotRows& source, std::function<void()> run_next)
      : source_(source), run_next_(std::move(run_next)) {}
  const moetap::ModelShape& shape() const override { return source_.shape; }
  std::int64_t num_slots() const override { return std::ssize(source_.stamps); }
  Step poll() override { return source_.last_step; }
  void wait_for(Step step, moetap::Milliseconds) override {
    while (step > source_.last_step) run_next_();
  }
  void read(std::span<const Slot> slots, std::span<const moetap::StepWindow> windows,
            std::span<std::byte> rows, std::span<moetap::RowState> states) override {
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const Step stamp = source_.stamps.at(static_cast<std::size_t>(slots[i].value()));
      states[i] = moetap::row_state(stamp, windows.size() == 1 ? windows[0] : windows[i]);
      std::memcpy(&rows[i * shape().row_bytes()], source_.row(slots[i]), shape().row_bytes());
    }
  }
  void put(Step step, std::span<const Slot> slots, std::span<const std::byte> rows,
           std::span<const moetap::RowState> states) override {
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const bool given = states.empty() || has_routes(states[i]);
      source_.stamps.at(static_cast<std::size_t>(slots[i].value())) = given ? step : Step();
      std::memcpy(source_.row(slots[i]), &rows[i * shape().row_bytes()], shape().row_bytes());
    }
  }

 private:
  SlotRows& source_;
  std::function<void()> run_next_;
};

// Runs plans, of a model with at most 256 experts, in order.
class SimulatedWorker {
 public:
  SimulatedWorker(const moetap::ModelShape& shape, std::int64_t num_blocks, int block_size,
                  double reject_rate = 0)
      : memory(shape, num_blocks * block_size), batch_(block_size, reject_rate) {}

  // What it sampled is valid until the next plan. As in the demo, rows that are not wanted are not
  // written.
  const Batch& run(const StepPlan& plan) {
    encode(plan, message_);
    const PlanView view = decode_plan(message_);
    batch_.begin(view);
    const Router router(memory.shape);
    for (const moetap::TokenRange range : view.wanted) {
      for (auto i = static_cast<std::size_t>(range.start); i < static_cast<std::size_t>(range.end);
           ++i) {
        const Slot slot = batch_.slots()[i];
        auto* ids = reinterpret_cast<std::uint8_t*>(memory.row(slot));
        for (const int layer : memory.shape.moe_layers()) {
          router(batch_.tokens()[i], batch_.positions()[i], layer, ids);
          ids += memory.shape.top_k();
        }
        memory.stamps.at(static_cast<std::size_t>(slot.value())) = plan.step;
      }
    }
    memory.last_step = plan.step;
    batch_.sample(view);
    return batch_;
  }

  SlotRows memory;

 private:
  Batch batch_;
  std::vector<std::byte> message_;
};

}  // namespace demo
