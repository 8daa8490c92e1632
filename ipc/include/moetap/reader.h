// The scheduler's object. Needs neither CUDA nor a GPU.
#pragma once

#include <moetap/error.h>
#include <moetap/read_transport.h>
#include <moetap/routes.h>
#include <moetap/step.h>
#include <moetap/types.h>

#include <memory>
#include <span>

namespace moetap {

struct MovePlan;  // <moetap/row_plan.h>

// Reads rows that a worker published. One a worker (data-parallel rank); one thread at a time.
class Reader {
 public:
  explicit Reader(std::unique_ptr<SlotReadTransport> transport);
  ~Reader();
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  // The process-wide one, for a scheduler with one worker; these three may be called from any
  // thread. create() twice is a StateError, so is instance() before create(); destroy() of none
  // does nothing. Nothing is destroyed at exit.
  static Reader& create(std::unique_ptr<SlotReadTransport> transport);
  static Reader& instance();
  static void destroy();

  const ModelShape& shape() const { return transport_->shape(); }
  std::int64_t num_slots() const { return transport_->num_slots(); }

  // Takes in the steps that have arrived and returns the last whose outcome is known; never waits.
  // Call it once a scheduling round, whatever else there is to do: a worker whose ring is full
  // waits for it (or drops its steps, see OnFull). A scheduler that blocks elsewhere for longer has
  // a thread for it: poll_in_thread() in <moetap/poll_thread.h>.
  Step poll() { return transport_->poll(); }
  void wait_for(Step step, Milliseconds limit) { transport_->wait_for(step, limit); }

  // See ReadTransport.
  bool worker_alive() { return transport_->worker_alive(); }
  DroppedSteps dropped() { return transport_->dropped(); }

  // See SlotReadTransport::read. Allocates nothing.
  void read(std::span<const Slot> slots, std::span<const StepWindow> windows,
            std::span<std::byte> rows, std::span<RowState> states) {
    transport_->read(slots, windows, rows, states);
  }

  // See SlotReadTransport::lend.
  std::optional<Lease> lend(std::span<const Slot> slots, std::span<const StepWindow> windows,
                            std::span<const std::byte*> rows, std::span<RowState> states,
                            const std::string& holder) {
    return transport_->lend(slots, windows, rows, states, holder);
  }

  // See SlotReadTransport::put. RangeError, before anything is changed, for an id that the model
  // does not have, ArgumentError for one that is twice in a layer and for bytes that
  // are not 0 between ids and weights; the bytes of a row that is given as ~slot do not matter.
  void put(Step step, std::span<const Slot> slots, std::span<const std::byte> rows);

  // Rows of positions [range.start, range.end) of a sequence that owns `blocks`. `windows` has one
  // element for all or one a block. A sequence of S tokens has S-1 rows: the last sampled token has
  // had no forward pass.
  Routes read(std::span<const BlockId> blocks, int block_size, TokenRange range,
              std::span<const StepWindow> windows);

 private:
  friend std::size_t move_rows(Reader&, const MovePlan&, Milliseconds);  // puts what it has read

  std::unique_ptr<SlotReadTransport> transport_;
};

// Reads whole requests from a worker whose transport keeps rows per request.
class RequestReader {
 public:
  explicit RequestReader(std::unique_ptr<RequestReadTransport> transport);
  ~RequestReader();

  const ModelShape& shape() const { return transport_->shape(); }
  Step poll() { return transport_->poll(); }  // these as Reader's
  void wait_for(Step step, Milliseconds limit) { transport_->wait_for(step, limit); }
  bool worker_alive() { return transport_->worker_alive(); }
  DroppedSteps dropped() { return transport_->dropped(); }

  // See RequestReadTransport::take.
  Routes take(std::uint64_t request, TokenRange range, Milliseconds limit);

 private:
  std::unique_ptr<RequestReadTransport> transport_;
};

}  // namespace moetap
