// What a simulated scheduler calls, with a trace of it. Each does what the library's of its name
// does.
#pragma once

#include <moetap/block_store.h>
#include <moetap/ledger.h>
#include <moetap/offload.h>
#include <moetap/pending_rows.h>
#include <moetap/read_rows.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "test/simulation/trace.h"

namespace moetap::simulation {

class TracedLedger : public Ledger {
 public:
  TracedLedger(Trace& trace, std::int64_t num_blocks, int block_size, Drafts drafts);

  void admit(const Admission& admission);
  void schedule(Step step, RequestId request, TokenRange positions,
                std::span<const BlockId> new_blocks = {});
  void accept(Step step, RequestId request, std::int64_t num_tokens);
  MovePlan accept(Step step, RequestId request, std::int64_t num_tokens,
                  std::span<const std::int64_t> accepted, Step moved_as);
  void preempt(RequestId request);
  RowPlan preempt_keeping(RequestId request);
  void resume(RequestId request, const Placement& placement);
  MovePlan move(Step step, std::span<const BlockMove> moves);
  MovePlan copy(Step step, RequestId request, BlockMove move);
  FillPlan fill(Step step, RequestId request, TokenRange positions);
  void forget(std::span<const BlockId> blocks);
  void flush();
  RowPlan finish(RequestId request, std::int64_t num_tokens);
  RowPlan abort(RequestId request);
  RowPlan rows_since(RequestId request, std::int64_t start) const;
  RowPlan block_rows(BlockId block) const;
  std::int64_t cached_rows(const Placement& placement) const;
  std::int64_t num_wanting() const;
  bool held(BlockId block) const;

 private:
  Trace& trace_;
};

class TracedReader : public Reader {
 public:
  TracedReader(Trace& trace, std::unique_ptr<SlotReadTransport> transport)
      : Reader(std::move(transport)), trace_(trace) {}

  Step poll();
  void wait_for(Step step, Milliseconds timeout);
  Trace& trace() { return trace_; }

 private:
  Trace& trace_;
};

Routes read_rows(TracedReader& reader, const RowPlan& plan, Milliseconds timeout);
Routes read_rows(TracedReader& reader, const RowPlan& plan);
RoutesView view_rows(TracedReader& reader, const RowPlan& plan, const std::string& holder,
                     Milliseconds timeout);
// Of the view that was made first, and is not yet detached.
Routes detach(TracedReader& reader, RoutesView view);
void append(Trace& trace, MovePlan& to, const MovePlan& next);
std::size_t move_rows(TracedReader& reader, const MovePlan& plan, Milliseconds timeout);
void fill_rows(TracedReader& reader, const FillPlan& plan, std::span<const std::byte> rows,
               Milliseconds timeout);
bool store_block(BlockStore& store, const BlockKey& key, const TracedLedger& ledger,
                 TracedReader& reader, BlockId block, Milliseconds timeout);
std::int64_t load_blocks(BlockStore& store, const std::vector<BlockKey>& keys, TracedLedger& ledger,
                         TracedReader& reader, Step step, RequestId request, std::int64_t position,
                         Milliseconds timeout);

class TracedPending {
 public:
  TracedPending(Trace& trace, Ledger& ledger, Reader& reader)
      : trace_(trace), rows_(ledger, reader) {}

  void add(const RowPlan& plan);
  std::size_t size() const { return rows_.size(); }
  void take_early(const std::vector<BlockId>& blocks, Milliseconds timeout);
  Routes collect(RequestId request, Milliseconds timeout);

 private:
  Trace& trace_;
  PendingRows rows_;
};

}  // namespace moetap::simulation
