// A serving engine that does to its requests whatever an engine can do, drawn from a seed, and
// checks each row that a ledger returns against an oracle. Its worker runs the steps later, knows
// alone how many drafts were accepted, and goes on with requests that are over meanwhile.
#pragma once

#include <moetap/ledger.h>
#include <moetap/pending_rows.h>

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "row_oracle.h"
#include "slot_memory.h"

namespace moetap::test {

class RandomEngine {
 public:
  // How often each thing happened, so that a test can tell that all of it did.
  struct Counts {
    std::int64_t present = 0, missing = 0, stale = 0, clobbered = 0;
    std::int64_t hits = 0, preemptions = 0, aborts = 0, finished = 0, rejected = 0, corrected = 0;
    std::int64_t moves = 0, rows_moved = 0, copies = 0, fills = 0, flushes = 0, forgotten = 0;
    std::int64_t taken_early = 0, held_back = 0, failed_steps = 0, steps = 0;
  };

  RandomEngine(std::uint64_t seed, Counts& counts);
  void run(int ticks);

 private:
  static constexpr int kBlock = 4;
  static constexpr Milliseconds kNow{0};

  // When rows of requests that are over are read: at once; later, with the blocks held; later, or
  // early if a block is to be reused; or later, with no care at all.
  enum class Reading { at_once, held, early, careless };

  // A request's life until it is over or preempted, as the worker sees it.
  struct Run {
    std::int64_t next = 0;     // position to compute
    std::int64_t prefill = 0;  // positions below are of tokens that are known from the start
    bool over = false;
  };
  struct Request {
    std::uint64_t id = 0;
    std::vector<int> tokens;  // that stand
    std::int64_t most = 0;    // tokens, then it is finished
    std::int64_t start = 0;
    bool wants_rows = true;
    std::shared_ptr<Run> run;  // null: preempted
    std::vector<BlockId> blocks;
    std::int64_t computed = 0;  // by the steps so far, as the scheduler believes
    RowRefs rows;               // by position
  };
  struct Work {  // of one request in one step
    std::uint64_t request = 0;
    std::shared_ptr<Run> run;
    std::vector<BlockId> blocks;  // as they were
    TokenRange positions;         // as the scheduler believes
    RowRefs rows;
    bool prefill = false;
    bool wants_rows = true;
    std::int64_t accepted = 0;  // drafts, once it ran
  };
  struct InFlight {
    Step step = 0;
    std::vector<Work> work;
  };
  struct Put {  // was decided, and is not done yet
    MovePlan move;
    FillPlan fill;
    RowRefs before, after;
  };
  struct Read {
    RowPlan plan;
    RowOracle::Expected expected;
    std::vector<RowState> at_end;                // of the request
    std::optional<std::vector<RowState>> taken;  // as they were when they were taken early
  };
  struct Block {
    int users = 0;
    std::vector<int> key;  // of the cache, if it is in there
    std::uint64_t used = 0;
  };

  std::int64_t draw(std::int64_t most) {  // 0 … most
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(most + 1));
  }
  bool chance(int percent) { return draw(99) < percent; }
  template <class Container>
  auto& any_of(Container& container) {
    return *std::next(container.begin(), draw(static_cast<std::int64_t>(container.size()) - 1));
  }
  static Slot slot_of(const std::vector<BlockId>& blocks, std::int64_t position) {
    return blocks.at(static_cast<std::size_t>(position / kBlock)) * kBlock + position % kBlock;
  }
  static std::int64_t size(const std::vector<int>& tokens) {
    return static_cast<std::int64_t>(tokens.size());
  }
  Block& block(BlockId id) { return blocks_.at(static_cast<std::size_t>(id)); }

  void tick();

  // random_engine.cc: requests and steps
  void arrive();
  bool place(Request& request, bool resumed);
  void preempt(Request& request);
  void finish(Request& request);
  void abort(Request& request);
  void end(Request& request);
  void ask(const Request& request);
  void schedule();
  Work next_work(const Request& request);
  bool give_blocks(Request& request, std::int64_t end, std::vector<BlockId>& fresh);
  void set_rows(Request& request, Work& work, Step step);
  void land();
  void run_work(Work& work, Step step);
  void output(const Work& work);
  void correct(Request& request);
  void drain();

  // random_blocks.cc: blocks, what happens to them, and when rows are read
  std::vector<BlockId> hit(const Request& request);
  void cache(const Request& request, std::int64_t end);
  void uncache(BlockId id);
  bool usable(BlockId id);
  std::optional<BlockId> take_block();
  bool take_blocks(std::int64_t count, std::vector<BlockId>& taken);
  void load(Request& request);
  void before_put();
  void move();
  void copy();
  void carry(MovePlan plan, const std::vector<BlockMove>& moves, Request* only);
  void flush();
  void forget();
  void offload();
  bool is_ready(const Put& put) {
    return done_by(put.move.last_step) && done_by(put.fill.last_step);
  }
  bool done_by(Step step) { return step <= memory_->last_step(); }
  void do_put();
  RowOracle::Expected expect(const Request& request, TokenRange range) const;
  void read_now(const RowPlan& plan, const RowOracle::Expected& expected);
  void leave(RowPlan plan, RowOracle::Expected expected);
  void collect(std::size_t index);
  void count(const Routes& routes);

  std::mt19937_64 random_;
  Counts& counts_;
  const int num_blocks_, depth_, most_drafts_;
  const Reading reading_;
  const bool publish_all_;  // also rows that nobody asked for
  RowOracle oracle_;
  Ledger ledger_;
  SlotMemory* memory_;
  Reader reader_;
  PendingRows pending_;

  std::map<std::uint64_t, Request> requests_;
  std::deque<InFlight> in_flight_;
  std::set<std::uint64_t> scheduled_;  // in the step that is being made
  std::vector<Block> blocks_;
  std::map<std::vector<int>, BlockId> cache_;
  std::deque<Put> puts_;
  std::vector<Read> reads_;
  Step step_ = 0;
  Step flushed_ = 0;
  std::uint64_t requests_so_far_ = 0, uses_ = 0;
  int weights_ = 0;  // part of the cache's keys
};

}  // namespace moetap::test
