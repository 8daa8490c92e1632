// The scheduler's main class. It needs neither CUDA nor a GPU.
#pragma once

#include <moetap/error.h>
#include <moetap/export.h>
#include <moetap/read_transport.h>
#include <moetap/routes.h>
#include <moetap/step.h>
#include <moetap/types.h>

#include <memory>
#include <span>

namespace moetap {

struct MovePlan;  // <moetap/row_plan.h>

// Reads rows that a worker published. One per worker (data-parallel rank). One thread at a time.
class MOETAP_API Reader {
 public:
  explicit Reader(std::unique_ptr<SlotReadTransport> transport);
  ~Reader();
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  // The process-wide Reader, for a scheduler with one worker. These three functions may be called
  // from any thread. StateError for a second create(), and for instance() before create().
  // destroy() does nothing if there is none. It is not destroyed at exit.
  static Reader& create(std::unique_ptr<SlotReadTransport> transport);
  static Reader& instance();
  static void destroy();

  const ModelShape& shape() const { return transport_->shape(); }
  std::int64_t num_slots() const { return transport_->num_slots(); }

  // Takes in the steps that have arrived and returns the last step whose outcome is known. Never
  // waits. Call it in every scheduling round: a worker whose ring is full waits for it, or drops
  // its steps (see OnFull). A scheduler that blocks elsewhere for longer uses a thread:
  // poll_in_thread() in <moetap/poll_thread.h>.
  Step poll() { return transport_->poll(); }
  void wait_for(Step step, Milliseconds timeout) { transport_->wait_for(step, timeout); }

  // See ReadTransport::worker_alive and ReadTransport::dropped.
  bool worker_alive() { return transport_->worker_alive(); }
  DroppedSteps dropped() { return transport_->dropped(); }

  // See SlotReadTransport::read. Allocates nothing.
  void read(std::span<const Slot> slots, std::span<const StepWindow> windows,
            std::span<std::byte> rows, std::span<RowState> states) {
    transport_->read(slots, windows, rows, states);
  }

  // See SlotReadTransport::lend.
  [[nodiscard]] std::optional<Lease> lend(std::span<const Slot> slots,
                                          std::span<const StepWindow> windows,
                                          std::span<const std::byte*> rows,
                                          std::span<RowState> states, const std::string& holder) {
    return transport_->lend(slots, windows, rows, states, holder);
  }

  // See SlotReadTransport::put. Also checks the rows, before anything is changed. RangeError for an
  // id that the model does not have. ArgumentError for an id that is twice in a layer, and for
  // bytes other than 0 between ids and weights. The bytes of a row that becomes missing are not
  // checked.
  void put(Step step, std::span<const Slot> slots, std::span<const std::byte> rows,
           std::span<const RowState> states = {});

  // Rows of positions [range.start, range.end) of a sequence that owns `blocks`. `windows` has one
  // element for all blocks, or one for each block. A sequence of S tokens has S-1 rows: the last
  // sampled token has had no forward pass.
  Routes read(std::span<const BlockId> blocks, int block_size, TokenRange range,
              std::span<const StepWindow> windows);

 private:
  friend std::size_t move_rows(Reader&, const MovePlan&, Milliseconds);  // puts unchecked rows

  std::unique_ptr<SlotReadTransport> transport_;
};

// Reads whole requests from a worker whose transport keeps rows per request.
class MOETAP_API RequestReader {
 public:
  explicit RequestReader(std::unique_ptr<RequestReadTransport> transport);
  ~RequestReader();

  const ModelShape& shape() const { return transport_->shape(); }
  Step poll() { return transport_->poll(); }  // these four as in Reader
  void wait_for(Step step, Milliseconds timeout) { transport_->wait_for(step, timeout); }
  bool worker_alive() { return transport_->worker_alive(); }
  DroppedSteps dropped() { return transport_->dropped(); }

  // See RequestReadTransport::take.
  Routes take(RequestId request, TokenRange range, Milliseconds timeout);

 private:
  std::unique_ptr<RequestReadTransport> transport_;
};

}  // namespace moetap
