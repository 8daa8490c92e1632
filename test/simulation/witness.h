// The scheduler's end of one stage of a worker, which tells the oracle what it took in.
#pragma once

#include <moetap/read_transport.h>
#include <moetap/step.h>
#include <moetap/types.h>

#include <functional>
#include <memory>
#include <optional>

#include "test/simulation/oracle.h"
#include "test/simulation/trace.h"

namespace moetap::simulation {

class Witness final : public SlotReadTransport {
 public:
  // `shared`: the worker writes straight into what this end reads.
  Witness(std::unique_ptr<SlotReadTransport> reader, int stage, bool shared, Oracle& oracle,
          Trace& trace)
      : reader_(std::move(reader)),
        stage_(stage),
        shared_(shared),
        oracle_(oracle),
        trace_(trace) {}

  const ModelShape& shape() const override { return reader_->shape(); }
  std::int64_t num_slots() const override { return reader_->num_slots(); }
  Step poll() override;
  std::function<void()> meanwhile = [] {};  // called before each look for what has come
  void wait_for(Step step, Milliseconds timeout) override;
  void read(std::span<const Slot> slots, std::span<const StepWindow> windows,
            std::span<std::byte> rows, std::span<RowState> states) override;
  void stamps(std::span<const Slot> slots, std::span<Step> written) override;
  std::optional<Lease> lend(std::span<const Slot> slots, std::span<const StepWindow> windows,
                            std::span<const std::byte*> rows, std::span<RowState> states,
                            const std::string& holder) override;
  void put(Step step, std::span<const Slot> slots, std::span<const std::byte> rows,
           std::span<const RowState> states) override;

  bool worker_alive() override { return reader_->worker_alive(); }
  DroppedSteps dropped() override { return reader_->dropped(); }

 private:
  void look_at_what_came(Step step);
  void note_what_came();
  void look() {
    if (shared_) poll();
  }

  std::unique_ptr<SlotReadTransport> reader_;
  int stage_;
  bool shared_;
  Oracle& oracle_;
  Trace& trace_;
  Step noted_ = 0;
};

// The same of a worker that keeps the rows by request: only steps can be waited for, and no slot
// can be read.
class RequestWitness final : public SlotReadTransport {
 public:
  RequestWitness(std::unique_ptr<RequestReadTransport> reader, std::int64_t num_slots,
                 Oracle& oracle)
      : reader_(std::move(reader)), num_slots_(num_slots), oracle_(oracle) {}

  const ModelShape& shape() const override { return reader_->shape(); }
  std::int64_t num_slots() const override { return num_slots_; }
  Step poll() override;
  void wait_for(Step step, Milliseconds timeout) override { reader_->wait_for(step, timeout); }
  void read(std::span<const Slot> slots, std::span<const StepWindow> windows,
            std::span<std::byte> rows, std::span<RowState> states) override;
  void put(Step step, std::span<const Slot> slots, std::span<const std::byte> rows,
           std::span<const RowState> states) override;

  // Nothing if they have not come.
  std::optional<Routes> take(RequestId request, TokenRange range);

 private:
  std::unique_ptr<RequestReadTransport> reader_;
  std::int64_t num_slots_;
  Oracle& oracle_;
};

}  // namespace moetap::simulation
