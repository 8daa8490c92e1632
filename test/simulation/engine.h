// A scheduler that does to its requests whatever an engine can do, as the dice have it, and checks
// each row that a ledger returns against an oracle. Its worker runs the steps later, knows alone
// how many drafts were accepted, and goes on with requests that are over meanwhile.
#pragma once

#include <moetap/block_store.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "test/simulation/counts.h"
#include "test/simulation/dice.h"
#include "test/simulation/oracle.h"
#include "test/simulation/traced.h"
#include "test/simulation/worker.h"

namespace moetap::simulation {

inline constexpr int kBlock = 4;  // tokens

struct EngineOptions {
  static EngineOptions draw(Dice& dice);

  // When rows of requests that are over are read: at once; later, with the blocks held; later, or
  // early if a block is to be reused; or later, with no care at all.
  enum class Reading { at_once, held, early, careless };
  // How many drafts of a step in flight the next step is scheduled after.
  enum class Guess { all, none, any };

  int num_blocks = 16;
  int depth = 1;  // steps in flight
  int most_drafts = 0;
  bool trees = false;  // they form one
  bool keeps = false;  // what a preempted run sampled
  Guess guess = Guess::all;
  Reading reading = Reading::at_once;
  bool publish_all = true;    // also rows that were not asked for
  bool per_request = false;   // the worker keeps the rows, and hands over a request's at its end
  bool declares = true;       // to such a worker, which tokens are drafts of a tree
  bool accepts_late = false;  // and says which stand when other steps are on their way
  bool joined = false;        // its reader is of several stages
  int continued = 0;          // percent of the requests go on elsewhere after their prefill

  Drafts drafts() const { return most_drafts > 0 && !trees ? Drafts::chain : Drafts::tree; }
};

// A request whose prefill another engine did, and the rows of that.
struct Continuation {
  std::vector<int> tokens;
  Routes rows;
};

class Engine {
 public:
  // The reader is of the transport, the store (which may be null) of every engine.
  struct Parts {
    Dice& dice;
    Counts& counts;
    History& history;
    Trace& trace;
    Oracle& oracle;
    Worker& worker;
    std::unique_ptr<SlotReadTransport> reader;
    // If per_request: a request's rows, or nothing if they have not come.
    std::function<std::optional<Routes>(RequestId, TokenRange)> take{};
    BlockStore* store = nullptr;
    std::map<std::vector<int>, RowRefs>* stored = nullptr;  // what is in it
    std::function<void(Continuation)> go_on_elsewhere{};
  };
  Engine(EngineOptions options, Parts parts);

  // Everything that happens between two steps, and one more step.
  void tick();
  // A request that began in another engine.
  void continue_here(Continuation continuation) { waiting_.push_back(std::move(continuation)); }
  // Some time passes, and what has come is taken in.
  void let_go_on();
  // Time passes while this scheduler waits for a step: its worker goes on.
  void meanwhile();
  // Nothing comes any more. Goes on until nothing is left, and shows that nothing is.
  void finish();

 private:
  using Reading = EngineOptions::Reading;
  static constexpr Milliseconds kNow{0};

  // A request's life until it is over or preempted, as the worker sees it.
  struct Run {
    std::int64_t next = 0;     // position to compute
    std::int64_t prefill = 0;  // positions below are of tokens that are known from the start
    bool over = false;
  };
  struct Request {
    RequestId id = 0;
    std::vector<int> tokens;  // that stand
    std::int64_t most = 0;    // tokens, then it is finished
    std::int64_t start = 0;
    bool wants_rows = true;
    std::shared_ptr<Run> run;  // null: preempted
    std::vector<BlockId> blocks;
    std::int64_t computed = 0;  // by the steps so far, as the scheduler believes
    std::int64_t reach = 0;     // or by them at most
    std::int64_t hits = 0;      // positions below were not computed
    std::int64_t known = 0;     // up to where the ledger was told of rows
    RowRefs rows;               // by position
    std::vector<std::pair<std::int64_t, RowRef>> covered;  // by rows of steps in flight
    RowRefs standing;              // by position: of the token that stands, as the worker has it
    std::optional<Routes> got;     // what its client has
    std::optional<Routes> before;  // of another engine
    bool goes_on = false;          // elsewhere
    bool known_to_worker = false;  // some of it was scheduled
    bool keeps = false;            // what was sampled before its last preemption
    std::int64_t kept = 0;         // rows below were read then
    std::int64_t unkept = 0;       // rows below that were not are of no run that counts
  };
  struct Work {  // of one request in one step
    RequestId request = 0;
    std::shared_ptr<Run> run;
    std::vector<BlockId> blocks;  // as they were
    TokenRange positions;         // as the scheduler believes
    RowRefs rows;
    bool prefill = false;
    bool wants_rows = true;
    bool told = true;                // the ledger, of where it begins
    std::int64_t accepted = 0;       // drafts, once it ran
    std::vector<std::int64_t> path;  // of a tree: which tokens stand
  };
  struct InFlight {
    Step step = 0;
    std::vector<Work> work;
    std::optional<StepWork> begun;
    bool ran = false;                         // ahead of its turn, while the scheduler waited
    std::vector<std::function<void()>> told;  // the worker, after it
  };
  struct Put {  // was decided, and is not done yet
    MovePlan move;
    FillPlan fill;
    RowRefs before, after;
  };
  // Of a request that is over.
  struct Read {
    RowPlan plan;
    Oracle::Expected expected;
    std::vector<RowState> at_end;                // of the request
    std::optional<std::vector<RowState>> taken;  // as they were when they were taken early
    std::function<void(Routes)> then;
    bool by_request = false;
  };
  struct View {
    RoutesView view;
    Oracle::Expected expected;
    std::vector<RowState> states;
  };
  struct Block {
    int users = 0;
    std::vector<int> key;  // of the cache, if it is in there
    std::uint64_t used = 0;
    Step moved = 0;  // to here, since it was given to its owner
  };

  std::int64_t draw(std::int64_t most) { return dice_.draw(most); }
  bool chance(int percent) { return dice_.chance(percent); }
  static Slot slot_of(const std::vector<BlockId>& blocks, std::int64_t position) {
    const BlockId block = blocks.at(static_cast<std::size_t>(position / kBlock));
    return first_slot(block, kBlock) + position % kBlock;
  }
  template <class T>
  static std::int64_t size(const std::vector<T>& tokens) {
    return static_cast<std::int64_t>(tokens.size());
  }
  Block& block(BlockId id) { return blocks_.at(static_cast<std::size_t>(id.value())); }
  // Repeats try_it() until it is true, letting things go on; a deadlock is a failure.
  template <class Try>
  void until(const char* what, Try&& try_it);

  // engine.cc: requests and steps
  void arrive();
  bool arrive_from_elsewhere(const Continuation& continuation);
  bool place(Request& request, bool resumed, std::int64_t elsewhere);
  void preempt(Request& request);
  void finish(Request& request);
  void abort(Request& request);
  void end(Request& request);
  void end_in_worker(RequestId request, RequestEnd how);
  void tell_worker(std::function<void()> told);
  void schedule();
  Work next_work(const Request& request);
  bool give_blocks(Request& request, std::int64_t end, std::vector<BlockId>& fresh);
  void set_rows(Request& request, Work& work, Step step);
  std::int64_t guess_end(const Work& work);
  bool land();
  void begin(InFlight& step);
  void await();
  void run_work(Work& work, Step step);
  void output(const Work& work, Step step);
  static void stand(Request& request, std::int64_t position, const RowRef& row);
  void correct(Request& request, bool landed);
  void correct(Request& request, Work& work, Step step, bool landed);
  void guess_again(Request& request, Work& work, Step step);
  void guess_low(Request& request, Work& work, Step step);
  void drain();

  // engine_drafts.cc: trees of drafts, and runs whose tokens are kept
  std::vector<std::int64_t> draw_path(std::int64_t tokens);
  void accept_tree(Request& request, const Work& work, Step step);
  void accept_in_worker(Request& request, const Work& work, Step step);
  void look_ahead();
  std::vector<BlockId> blocks_of_drafts();
  bool moved_since(const Request& request, TokenRange positions, Step step);
  void lose_rows(Request& request, TokenRange positions, Step step);
  void cover(Request& request, std::int64_t position, const RowRef& row);
  void uncover(Request& request, std::int64_t position, Step step);
  static RowRef row_of(const Request& request, std::int64_t position, Step step);
  void settle_guesses(Request& request);
  void keep(Request& request);
  void output_late(const Work& work, Step step);

  // engine_blocks.cc: blocks, and what happens to them
  std::vector<int> key_of(const Request& request, std::int64_t end) const;
  std::vector<int> store_key(std::vector<int> key) const;
  std::vector<BlockId> hit(const Request& request);
  void cache(const Request& request, std::int64_t end);
  void uncache(BlockId id);
  bool usable(BlockId id);
  std::optional<BlockId> take_block();
  bool take_blocks(std::int64_t count, std::vector<BlockId>& taken);
  void fill(Request& request);
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
  bool done_by(Step step) { return step <= oracle_.taken_in(); }
  void do_put();
  void put_filled(const Put& put);
  void put_moved(const Put& put);

  // engine_reads.cc: when rows are read
  void ask(Request& request);
  Oracle::Expected expect(const Request& request, TokenRange range) const;
  Oracle::Expected expect_block(BlockId id) const;
  Routes read_now(const RowPlan& plan, const Oracle::Expected& expected);
  void look_at(const RowPlan& plan, const Oracle::Expected& expected);
  void drop_views();
  void leave(const Request& request, RowPlan plan, Oracle::Expected expected);
  void collect(std::size_t index);
  void take(const Read& read);
  void deliver(const Read& read, Routes routes);
  void join(Routes before, const Routes& routes);
  void count(const Routes& routes);

  const EngineOptions options_;
  Dice& dice_;
  Counts& counts_;
  History& history_;
  Trace& trace_;
  Oracle& oracle_;
  Worker& worker_;
  BlockStore* store_;
  std::map<std::vector<int>, RowRefs>* stored_;
  std::function<std::optional<Routes>(RequestId, TokenRange)> take_;
  std::function<void(Continuation)> go_on_elsewhere_;
  TracedLedger ledger_;
  TracedReader reader_;
  TracedPending pending_;

  std::map<RequestId, Request> requests_;
  std::deque<Continuation> waiting_;
  std::deque<InFlight> in_flight_;
  std::set<RequestId> scheduled_;  // in the step that is being made
  std::vector<Block> blocks_;
  std::map<std::vector<int>, BlockId> cache_;
  std::deque<Put> puts_;
  std::vector<Read> reads_;
  std::vector<View> views_;
  bool waits_ = false;
  Step step_ = 0;
  Step flushed_ = 0;
  Step moved_as_ = 0;  // by a step that is landing
  std::uint64_t requests_so_far_ = 0, uses_ = 0;
  int weights_ = 0, flushes_ = 0;  // part of the cache's, of the store's keys
};

template <class Try>
void Engine::until(const char* what, Try&& try_it) {
  constexpr int kPatience = 500;
  for (int i = 0; !try_it(); ++i) {
    require(i < kPatience, "deadlock: {} does not happen", what);
    let_go_on();
  }
}

}  // namespace moetap::simulation
