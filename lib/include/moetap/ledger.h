// Tells the scheduler which rows belong to which request, through preemption, prefix hits and
// moves.
#pragma once

#include <moetap/drafts.h>
#include <moetap/export.h>
#include <moetap/read_rows.h>
#include <moetap/row_plan.h>
#include <moetap/types.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace moetap {

// Where a request's tokens lie in the KV cache when it starts or resumes.
struct Placement {
  std::span<const BlockId> blocks{};  // of the anchor group, in order of position
  // Positions [0, cached) are a prefix hit: earlier requests computed them, in the first blocks.
  // They are of tokens that the request is known to have. Tokens that are loaded into new blocks
  // from elsewhere do not count: see Ledger::fill.
  std::int64_t cached = 0;
};

struct Admission {
  RequestId request = 0;
  std::int64_t num_tokens = 0;  // known tokens: the prompt
  Placement placement{};
  bool wants_rows = true;  // false: nothing is recorded for it, and its rows need not be published
  // Rows before this position are not requested: the caller has them. Publish them all the same,
  // for prefix hits and moves.
  std::int64_t start = 0;
};

// Moves a block with its contents.
struct BlockMove {
  BlockId from = 0;
  BlockId to = 0;
};

class Ledger;

// Keeps blocks from being given away during its lifetime. Movable. The ledger must outlive it.
class MOETAP_API Hold {
 public:
  Hold() = default;
  Hold(Hold&& other) noexcept;
  Hold& operator=(Hold&& other) noexcept;
  ~Hold();

 private:
  friend class Ledger;
  Ledger* ledger_ = nullptr;
  std::vector<BlockId> blocks_;
};

// Keeps account of one worker's KV cache and says what to read. The scheduler that owns the cache
// reports its decisions, in the order in which it takes them. One thread at a time.
//
// For every slot the ledger knows the step that was scheduled to write its row. A prefix hit
// inherits these steps from the request that computed the tokens. A block that is allocated anew
// starts without them. A row is read with exactly that step as its window: an older stamp is stale,
// a newer one clobbered, none missing. So a result does not depend on what happened meanwhile, and
// plans are right for any number of steps in flight.
//
// A call that throws has changed nothing. An unknown request is a StateError, an unknown block a
// RangeError. Once the load has reached its peak, only calls that return a plan allocate.
class MOETAP_API Ledger {
 public:
  // Sizes are those of the anchor KV-cache group. ArgumentError for sizes below 1. An engine whose
  // drafts never form a tree passes Drafts::chain, and need not tell accept() which drafts were
  // accepted.
  Ledger(std::int64_t num_blocks, int block_size, Drafts drafts = Drafts::tree);
  ~Ledger();

  std::int64_t num_slots() const;
  int block_size() const;

  // --- what the scheduler decided
  // -----------------------------------------------------------------

  // A new request. StateError if it is here already, or if a block after the cached ones is held.
  // ArgumentError if a block is given twice, or if cached or start is not within the blocks or
  // tokens. A block that is cached in part becomes this request's own: no other request may write
  // to it any more.
  void admit(const Admission& admission);

  // `step` computes `positions` of the request, which gets `new_blocks` after those it has. With
  // drafts, positions are those of the slots in which the tokens are computed, whatever their depth
  // in a tree. Drafts are the tokens after the first one and after those that are known.
  //
  // Asynchronous speculation guesses where a step begins: only the worker knows how many tokens of
  // the previous step were accepted. So steps with drafts, and steps after them, may be reported
  // again with other positions until they are accepted: in any order, and as often as the guess
  // changes. Nothing is left of what was reported before. Steps in flight may lie over each other.
  // A position has the row of the newest step that covers it, and once that step is reported
  // elsewhere, the row that it covered. This holds for the newest 64 steps of a request.
  //
  // A step may begin before tokens that are computed already. If it has drafts of a tree, it is
  // taken for a guess that is too low: those tokens keep their rows, and the step's are missing
  // until it is reported where it begins. Otherwise it computes the tokens again, and the rows are
  // its own until it is reported elsewhere.
  //
  // RangeError if the positions leave the blocks. StateError if
  // - a position lies in a block that the request shares or lost;
  // - a position lies in a block that others hit whole, and has another row there;
  // - rows were put into the block under this or a later step;
  // - the step is in flight and the block moved there (the step writes to the block's old place);
  // - a later step already has the row, and this one is not in flight;
  // - move() or fill() used the step, or used a later one and the step is new to the request, or
  //   was reported without drafts and now has some;
  // - a new block is held.
  void schedule(Step step, RequestId request, TokenRange positions,
                std::span<const BlockId> new_blocks = {});

  // `step` came back. The request's sequence now has `num_tokens` accepted tokens: the prompt and
  // those that were sampled or accepted, up to the last token that `step` sampled. What steps up to
  // this one computed from there on belonged to rejected drafts, and is no longer a row. Later
  // steps begin after it, so what they were reported to compute before it is no row either, unless
  // they compute known tokens again. If a later step in flight really begins elsewhere than
  // reported, report it again; otherwise its rows are missing. A step with drafts has missing rows
  // also if accept() was never called for the step before it: its start is not known. ArgumentError
  // for fewer tokens than the request is known to have. StateError if drafts were accepted and
  // Drafts::chain was not declared: say which, with the next overload.
  void accept(Step step, RequestId request, std::int64_t num_tokens);

  // As above, for a tree: accepted[i] says which token of `step` was accepted for the i-th of its
  // positions (0: the token at the first position). The other tokens have no rows any more. If an
  // accepted token was computed at another position, the engine moves its keys and values to the
  // slot of its own position. Its row follows by move_rows(); otherwise it is stale. Move the rows
  // before the reader takes in the request's next step, which is computed over their old slots. A
  // row that was overwritten first is missing. `moved_as` is a step number of its own, as in
  // move(). All requests that are accepted in one round may share it; it is used up only if a row
  // moves. ArgumentError if an accepted token is not given or given twice, or if a token that is no
  // draft would move. RangeError if the step has no such token. StateError if the step is not in
  // flight and a token moves, or if a token would move into a block where another request's rows
  // were put as `moved_as`.
  [[nodiscard]] MovePlan accept(Step step, RequestId request, std::int64_t num_tokens,
                                std::span<const std::int64_t> accepted, Step moved_as);

  // As above with a block size of 1, for an engine that moves no keys and values. Instead the i-th
  // of the step's positions gets the block of token accepted[i]. The blocks of the step's other
  // tokens are given up, and those of later steps in flight move up. ArgumentError for larger
  // blocks. StateError if it is not known where the step begins: accept the steps before it first.
  // StateError also for a step that was accepted already, if a later step was reported to compute
  // positions where blocks change places, and for a ledger of chains, whose rejected tokens keep
  // their blocks.
  void accept_blocks(Step step, RequestId request, std::int64_t num_tokens,
                     std::span<const std::int64_t> accepted);

  // The request lost its blocks and will be computed again. Rows of this run are not returned,
  // except through a prefix hit. StateError if it is already preempted.
  void preempt(RequestId request);

  // As preempt(), for a caller that keeps the tokens and log-probabilities that this run sampled.
  // It needs the routes of the same run, as those of the next run may differ. Returns the rows from
  // the request's start to the last sampled token. Read them, or hold() their blocks, before the
  // blocks are given away. From then on the request starts at their end: what rows_since(),
  // finish() and abort() return can be appended to them. If nothing was sampled, the plan is empty.
  // Tokens of this run that accept() reports later have no rows after the returned ones. Their own
  // rows were not read, and those of the next run are of other tokens.
  [[nodiscard]] RowPlan preempt_keeping(RequestId request);
  // As admit(), for a preempted request.
  void resume(RequestId request, const Placement& placement);

  // Blocks moved, and the requests' block lists follow. `step` is a number of its own, which no
  // forward pass has, greater than all scheduled steps. Move the rows by move_rows() before the
  // source blocks get new tokens; otherwise the rows are lost, and their state says so. Rows under
  // that of a later step in flight do not move. Blocks may trade places. StateError if a
  // destination is held.
  [[nodiscard]] MovePlan move(Step step, std::span<const BlockMove> moves);

  // Copy on write: as move(), but only for this request, which is the copy's only owner. Other
  // requests keep the original. StateError if the request does not have the block.
  [[nodiscard]] MovePlan copy(Step step, RequestId request, BlockMove move);

  // The request's tokens at these positions were loaded from elsewhere (a KV offload, another
  // engine), with their rows: pass the plan to fill_rows(). `step` is as in move(), blocks are as
  // in schedule(). The plan is empty for a request that does not want rows. ArgumentError for
  // tokens that the request is not known to have: drafts, or tokens that accept() has not reported.
  [[nodiscard]] FillPlan fill(Step step, RequestId request, TokenRange positions);

  // The engine evicted these blocks without allocating them anew. Their rows can no longer be hit,
  // and requests that still have them lose them.
  void forget(std::span<const BlockId> blocks);

  // The weights changed, and the engine dropped its keys and values or recomputes them. Rows
  // scheduled up to now are stale, in cached blocks and in running requests. Finished requests stay
  // valid, as they were computed entirely with the old weights. Do not call this for an in-place
  // update, where the engine keeps its keys and values. Its results are sampled from these, so
  // their rows are the right routes.
  void flush();

  // --- what to read
  // -------------------------------------------------------------------------------

  // The request ends with this many tokens. Returns the rows of positions [start, num_tokens - 1),
  // with `start` as admitted: the last sampled token had no forward pass. Rows that were never
  // scheduled are missing. Empty for a request that does not want rows. ArgumentError if num_tokens
  // <= start; but if preempt_keeping() returned the rows up to there, the plan is empty instead.
  RowPlan finish(RequestId request, std::int64_t num_tokens);

  // The request is aborted. Returns the rows that it has, from its start on.
  RowPlan abort(RequestId request);

  // The rows that the request has so far, from `start` on. They end at what was scheduled, and at
  // one less than the number of accepted tokens. Continue later from the result's end. RangeError
  // if `start` is beyond the known tokens, or for rows that preempt_keeping() returned. StateError
  // for a request that does not want rows.
  RowPlan rows_since(RequestId request, std::int64_t start) const;

  // All rows of a full block, as positions [0, block_size), to be stored under its hash.
  RowPlan block_rows(BlockId block) const;

  // How many of the positions [0, cached) of a prefix hit have rows, counted from the first. An
  // engine that needs all rows of a request recomputes the others instead of using the hit.
  std::int64_t cached_rows(const Placement& placement) const;

  // --- which rows matter
  // --------------------------------------------------------------------------

  bool wants_rows(RequestId request) const;
  // The number of current requests that want rows. While it is 0, no step needs publishing.
  std::int64_t num_wanting() const;

  // Keeps the plan's blocks from being given away. A block may be held several times, and is free
  // when all holds have ended.
  [[nodiscard]] Hold hold(const RowPlan& plan);
  bool held(BlockId block) const;

 private:
  friend class Hold;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace moetap
