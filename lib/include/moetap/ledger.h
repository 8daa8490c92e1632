// The scheduler's half: which rows belong to which request, whatever happens to the request.
#pragma once

#include <moetap/read_rows.h>
#include <moetap/row_plan.h>
#include <moetap/types.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace moetap {

// Where a request's tokens lie in the KV cache when it starts, or starts again.
struct Placement {
  std::span<const BlockId> blocks{};  // of the anchor group, in order of their positions
  // Positions [0, cached) are in the first blocks already, computed by earlier requests (a prefix
  // hit). Tokens that are loaded into new blocks from elsewhere do not count: see Ledger::fill.
  std::int64_t cached = 0;
};

struct Admission {
  std::uint64_t request = 0;
  std::int64_t num_tokens = 0;  // known tokens: the prompt
  Placement placement{};
  bool wants_rows = true;  // of one that does not, nothing is kept, and its rows need no publishing
  // Rows below this position are not asked for: the caller has them. Publish them all the same, for
  // prefix hits and moves.
  std::int64_t start = 0;
};

// How a step's drafts (speculative tokens) hang together.
enum class Drafts : std::uint8_t {
  // They may be alternatives of each other. Those that stand need not be the first, and the engine
  // moves their keys and values to where they stand. accept() says which; else they have no rows.
  tree,
  // Each follows the one before, so that those that stand are the first, where they were computed.
  // Also of a worker that publishes after it has verified, with the final slot of each token that
  // stands in its slot mapping, and the slots that are left over for the others.
  chain,
};

// A block that moves, with what is in it.
struct BlockMove {
  BlockId from = 0;
  BlockId to = 0;
};

class Ledger;

// Blocks that may not be given away while this lives. Movable. The ledger must outlive it.
class Hold {
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

// Keeps the books of one worker's KV cache, as the scheduler that owns it reports its decisions, in
// the order in which it takes them; and answers what to read. One thread at a time.
//
// For every slot it knows the step in which the row that belongs there was scheduled to be written.
// A prefix hit inherits these steps from whoever computed the tokens, and a block that is given out
// anew forgets them. A row is read with exactly that step as its window, so that nothing depends on
// what happened meanwhile: an older stamp is stale, a newer one clobbered, none missing. Plans are
// therefore right for any number of steps in flight.
//
// Every call that throws has changed nothing. Unknown requests are a StateError, unknown blocks a
// RangeError. Once as much has been going on as ever will, no call allocates except those that
// return a plan.
class Ledger {
 public:
  // Of the anchor KV-cache group. ArgumentError for sizes below 1. An engine whose drafts are never
  // a tree says so, and need not tell accept() which of them stand.
  Ledger(std::int64_t num_blocks, int block_size, Drafts drafts = Drafts::tree);
  ~Ledger();

  std::int64_t num_slots() const;
  int block_size() const;

  // --- what the scheduler decided
  // -----------------------------------------------------------------

  // A new request. StateError if it is here already, or one of the blocks behind the cached ones is
  // held; ArgumentError if a block comes twice, cached or start is not within the blocks or tokens.
  // A block that is cached in part becomes this request's own: nobody else may go on writing to it.
  void admit(const Admission& admission);

  // `step` computes `positions` of the request, which gets `new_blocks` behind those it has. With
  // drafts, positions are those of the slots that the tokens are computed in, whatever their depth
  // in a tree: drafts are the tokens after the first one and after those that are known. A step
  // that is in flight may be reported again with other positions, as with asynchronous speculation,
  // where only the worker knew how many tokens of the step before were accepted. StateError if a
  // position lies in a block that the request shares or lost, in one that others hit whole and that
  // has another row there, or that rows were put into under this or a later step (for one in
  // flight: that moved there, since it writes where the block was); if a later step has its row
  // already; if move() or fill() used the step, or a later one of a request that it is new to; or
  // if a new block is held. RangeError if the positions leave the blocks.
  void schedule(Step step, std::uint64_t request, TokenRange positions,
                std::span<const BlockId> new_blocks = {});

  // `step` came back, and the request's sequence now has this many tokens that stand: the prompt
  // and what was sampled, or proposed and accepted, up to the token that `step` sampled last. What
  // steps up to this one computed from there on was of rejected drafts and is no row of anything
  // any more. Where a later step is in flight and really begins elsewhere than it was reported to,
  // report it again; else its rows are missing. So are those of a step with drafts after one that
  // accept() was never told of: where it begins is not known. StateError if drafts stand and
  // Drafts::chain was not declared: say which, as below.
  void accept(Step step, std::uint64_t request, std::int64_t num_tokens);

  // As above, and accepted[i] is which of the tokens that `step` computed (0: the first of its
  // positions) stands at the i-th of its positions: the path through a tree. Rows of the others are
  // none any more. The engine moves the keys and values of each token that stands elsewhere than it
  // was computed to the slot of its position; its row follows by move_rows(), else it is stale.
  // Move them before the reader takes in the next step of the request, which is computed over where
  // they were: a row that was overwritten first is missing. `moved_as` is a step number of their
  // own, as in move(), which all requests that are accepted in one round may share; it is used up
  // only if a row moves. ArgumentError if a token that stands is not told or is told twice,
  // RangeError if the step has no such token, StateError if the step is not in flight and a token
  // moves, or if it would move into a block where another request's rows were put as `moved_as`.
  MovePlan accept(Step step, std::uint64_t request, std::int64_t num_tokens,
                  std::span<const std::int64_t> accepted, Step moved_as);

  // As above where a block holds one token, for an engine that moves no keys and values but gives
  // the i-th of the step's positions the block of token accepted[i]. The blocks of its other tokens
  // are given up, and those of later steps in flight move up. ArgumentError for larger blocks.
  void accept_blocks(Step step, std::uint64_t request, std::int64_t num_tokens,
                     std::span<const std::int64_t> accepted);

  // The request lost its blocks and will be computed again: nothing of this run is returned, except
  // as a prefix hit. StateError if it is preempted already.
  void preempt(std::uint64_t request);

  // As preempt(), for a caller that keeps what this run sampled, its log-probabilities too, and so
  // needs the routes that they came of: the next run's may differ. Returns the rows up to the last
  // token that was sampled, from where the request starts; read them, or hold() their blocks,
  // before those are given away. The request starts at their end from then on, so that what
  // rows_since(), finish() and abort() return appends to them. A run that sampled nothing keeps
  // nothing. Tokens that accept() reports later of steps of this run have no rows, from the
  // returned ones on: those that they came of were not read, and those of the next run are not
  // theirs.
  [[nodiscard]] RowPlan preempt_keeping(std::uint64_t request);
  // As admit(), for a request that was preempted.
  void resume(std::uint64_t request, const Placement& placement);

  // Blocks changed places before `step`, a number of their own that no forward pass has and that is
  // above all that were scheduled; requests follow. Their rows must be moved by move_rows() before
  // the blocks that they come from get new tokens, else they are lost (and say so). Several may
  // trade places. StateError if a destination is held.
  MovePlan move(Step step, std::span<const BlockMove> moves);

  // Copy on write: as move(), but only for this request, which owns the copy alone; everyone else
  // stays. StateError if the request does not have the block.
  MovePlan copy(Step step, std::uint64_t request, BlockMove move);

  // The request's tokens of these positions were loaded from elsewhere (a KV offload, another
  // engine) and their rows come along: fill_rows() puts them in. `step` as in move(), blocks as in
  // schedule(). The plan of a request that does not want rows is empty.
  FillPlan fill(Step step, std::uint64_t request, TokenRange positions);

  // The engine gave these blocks up without giving them out: their rows can no longer be hit, and a
  // request that still has them lost them.
  void forget(std::span<const BlockId> blocks);

  // The weights changed, and the engine dropped its keys and values, or computes them again: rows
  // scheduled up to now are stale, in cached blocks and in requests that are still here. What
  // finished before stays right, since all of it was computed with the old weights. Not for an
  // engine that goes on with the keys and values it has (an in-place update): what it returns was
  // sampled from them, and their rows are the routes that they came of.
  void flush();

  // --- what to read
  // -------------------------------------------------------------------------------

  // The request is over with this many tokens: the rows of positions [start, num_tokens - 1), as
  // admitted, since the last sampled token had no forward pass. Those that were never scheduled are
  // missing. Empty for a request that does not want rows. ArgumentError if num_tokens <= start,
  // unless the rows up to there were kept by preempt_keeping(): then it is empty.
  RowPlan finish(std::uint64_t request, std::int64_t num_tokens);

  // The request is over: the rows that it has, from its start on.
  RowPlan abort(std::uint64_t request);

  // The rows from `start` on that the request has so far: up to what was scheduled and is one below
  // its number of accepted tokens. Ask again from the result's end. RangeError if that many tokens
  // are not known, or for rows that preempt_keeping() gave to its caller; StateError for a request
  // that does not want rows.
  RowPlan rows_since(std::uint64_t request, std::int64_t start) const;

  // All rows of a block, as positions [0, block_size), to be kept under its hash when it is full.
  RowPlan block_rows(BlockId block) const;

  // How many of the positions [0, cached) of a prefix hit have rows, from the front: an engine that
  // needs all rows of a request computes the others again instead of taking the hit.
  std::int64_t cached_rows(const Placement& placement) const;

  // --- which rows matter
  // --------------------------------------------------------------------------

  bool wants_rows(std::uint64_t request) const;
  // Requests here that want rows. While there are none, no step needs publishing.
  std::int64_t num_wanting() const;

  // Keeps the plan's blocks from being given away. Holds add up.
  [[nodiscard]] Hold hold(const RowPlan& plan);
  bool held(BlockId block) const;

 private:
  friend class Hold;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace moetap
