// Ledger: which rows belong to which request.
#include "python/src/ledger.h"

#include <moetap/row_plan.h>

#include <fmt/format.h>

#include <memory>
#include <optional>

#include "python/src/bindings.h"
#include "python/src/shared.h"
#include "python/src/words.h"

namespace moetap::python {
namespace {

// A Hold, and whether it stands.
class PyHold {
 public:
  PyHold(std::shared_ptr<PyLedger> ledger, Hold hold)
      : ledger_(std::move(ledger)), hold_(std::move(hold)) {}
  PyHold(PyHold&& other) noexcept
      : ledger_(std::move(other.ledger_)), hold_(std::exchange(other.hold_, std::nullopt)) {}
  ~PyHold() {
    if (hold_) ledger_->wait_until_free();
  }
  void release() {
    const auto ledger = ledger_->use();
    hold_.reset();
  }
  bool released() const { return !hold_; }

 private:
  std::shared_ptr<PyLedger> ledger_;
  std::optional<Hold> hold_;
};

void bind_hold(nb::module_& m) {
  nb::class_<PyHold>(
      m, "Hold",
      "Keeps blocks from being given away until it is released, or gone. Use it with `with`.")
      .def("release", &PyHold::release, "Does nothing the second time.")
      .def_prop_ro("released", &PyHold::released)
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> Hold"))
      .def(
          "__exit__", [](PyHold& hold, nb::args) { hold.release(); },
          nb::sig("def __exit__(self, *_: object) -> None"))
      .def("__repr__",
           [](const PyHold& hold) { return hold.released() ? "<Hold, released>" : "<Hold>"; });
}

void add_decisions(nb::class_<PyLedger>& ledger) {
  ledger.def(
      "admit",
      [](PyLedger& l, GivenRequest request, std::int64_t num_tokens, Ints blocks,
         std::int64_t cached, bool wants_rows, std::int64_t start) {
        const GivenPlacement placement(blocks, cached);
        l.use()->admit({.request = request,
                        .num_tokens = num_tokens,
                        .placement = placement.get(),
                        .wants_rows = wants_rows,
                        .start = start});
      },
      nb::arg("request"), nb::arg("num_tokens"), nb::arg("blocks") = nb::tuple(),
      nb::arg("cached") = 0, nb::kw_only(), nb::arg("wants_rows") = true, nb::arg("start") = 0,
      "A new request with this many known tokens, the prompt. blocks: of the anchor group, in "
      "order.\n"
      "Positions [0, cached) are a prefix hit in the first of them. Rows before `start` are not\n"
      "requested. StateError if the request is here already, ArgumentError for contradictions.");
  ledger.def(
      "schedule",
      [](PyLedger& l, GivenStep step, GivenRequest request, TokenRange positions, Ints blocks) {
        const auto ids = block_ids(blocks, "new_blocks");
        l.use()->schedule(step, request, positions, ids);
      },
      nb::arg("step"), nb::arg("request"), nb::arg("positions"),
      nb::arg("new_blocks") = nb::tuple(),
      "`step` computes these positions of the request, which gets new_blocks after those it has.");
  ledger.def(
      "accept",
      [](PyLedger& l, GivenStep step, GivenRequest request, std::int64_t num_tokens) {
        l.use()->accept(step, request, num_tokens);
      },
      nb::arg("step"), nb::arg("request"), nb::arg("num_tokens"),
      "`step` came back, and the request now has this many tokens: up to the last sampled one.");
  ledger.def(
      "accept",
      [](PyLedger& l, GivenStep step, GivenRequest request, std::int64_t num_tokens, Ints accepted,
         GivenStep moved_as) {
        const auto tokens = accepted.get("accepted");
        return SharedMovePlan(l.use()->accept(step, request, num_tokens, tokens, moved_as));
      },
      nb::arg("step"), nb::arg("request"), nb::arg("num_tokens"), nb::arg("accepted"),
      nb::arg("moved_as"),
      "For a tree of drafts: accepted[i] says which token of `step` (0: the first) was accepted "
      "for\n"
      "the i-th of its positions. Pass the plan to move_rows() before the reader takes in the\n"
      "request's next step. `moved_as` is a step number of its own.");
  ledger.def(
      "accept_blocks",
      [](PyLedger& l, GivenStep step, GivenRequest request, std::int64_t num_tokens,
         Ints accepted) {
        const auto tokens = accepted.get("accepted");
        l.use()->accept_blocks(step, request, num_tokens, tokens);
      },
      nb::arg("step"), nb::arg("request"), nb::arg("num_tokens"), nb::arg("accepted"),
      "As accept(), with a block size of 1, for an engine that exchanges blocks and moves no "
      "keys.");
  ledger.def(
      "preempt", [](PyLedger& l, GivenRequest request) { l.use()->preempt(request); },
      nb::arg("request"), "The request lost its blocks and will be computed again.");
  ledger.def(
      "preempt_keeping",
      [](PyLedger& l, GivenRequest request) { return l.use()->preempt_keeping(request); },
      nb::arg("request"),
      "As preempt(), for a caller that keeps the tokens of this run: returns this run's rows. "
      "What\n"
      "comes later can be appended to them. Read them, or hold their blocks, at once.");
  ledger.def(
      "resume",
      [](PyLedger& l, GivenRequest request, Ints blocks, std::int64_t cached) {
        const GivenPlacement placement(blocks, cached);
        l.use()->resume(request, placement.get());
      },
      nb::arg("request"), nb::arg("blocks") = nb::tuple(), nb::arg("cached") = 0,
      "As admit(), for a preempted request.");
}

void add_blocks(nb::class_<PyLedger>& ledger) {
  ledger.def(
      "move",
      [](PyLedger& l, GivenStep step,
         const std::vector<std::pair<std::int64_t, std::int64_t>>& moves) {
        std::vector<BlockMove> blocks;
        for (const auto& [from, to] : moves) blocks.push_back({BlockId(from), BlockId(to)});
        return SharedMovePlan(l.use()->move(step, blocks));
      },
      nb::arg("step"), nb::arg("moves"),
      "Blocks moved, as pairs (from, to), and the requests' block lists follow. `step` is a number "
      "of\n"
      "its own, greater than all scheduled ones. Pass the plan to move_rows() before the old "
      "blocks\n"
      "get new tokens.");
  ledger.def(
      "copy",
      [](PyLedger& l, GivenStep step, GivenRequest request, GivenBlock from, GivenBlock to) {
        return SharedMovePlan(l.use()->copy(step, request, {from, to}));
      },
      nb::arg("step"), nb::arg("request"), nb::arg("from_block"), nb::arg("to_block"),
      "Copy on write: as move(), but only for this request. Others keep the original.");
  ledger.def(
      "fill",
      [](PyLedger& l, GivenStep step, GivenRequest request, TokenRange positions) {
        return l.use()->fill(step, request, positions);
      },
      nb::arg("step"), nb::arg("request"), nb::arg("positions"),
      "The request's tokens at these positions were loaded from elsewhere with their rows: pass "
      "the\n"
      "plan to fill_rows().");
  ledger.def(
      "forget",
      [](PyLedger& l, Ints blocks) {
        const auto ids = block_ids(blocks, "blocks");
        l.use()->forget(ids);
      },
      nb::arg("blocks"), "The engine evicted these blocks without allocating them anew.");
  ledger.def(
      "flush", [](PyLedger& l) { l.use()->flush(); },
      "The weights changed, and the engine dropped its keys and values or computes them again. "
      "Rows\n"
      "scheduled up to now are stale. Not for an update that keeps them.");
}

void add_plans(nb::class_<PyLedger>& ledger) {
  ledger.def(
      "finish",
      [](PyLedger& l, GivenRequest request, std::int64_t num_tokens) {
        return l.use()->finish(request, num_tokens);
      },
      nb::arg("request"), nb::arg("num_tokens"),
      "The request ends with this many tokens S. Returns the rows from its start to S - 1: the "
      "last\n"
      "sampled token had no forward pass.");
  ledger.def(
      "abort", [](PyLedger& l, GivenRequest request) { return l.use()->abort(request); },
      nb::arg("request"), "The request is aborted. Returns the rows that it has.");
  ledger.def(
      "rows_since",
      [](PyLedger& l, GivenRequest request, std::int64_t start) {
        return l.use()->rows_since(request, start);
      },
      nb::arg("request"), nb::arg("start"),
      "The rows that the request has so far, from `start` on. Continue from the result's end.");
  ledger.def(
      "block_rows", [](PyLedger& l, GivenBlock block) { return l.use()->block_rows(block); },
      nb::arg("block"), "All rows of a full block, as positions [0, block_size).");
  ledger.def(
      "cached_rows",
      [](PyLedger& l, Ints blocks, std::int64_t cached) {
        const GivenPlacement placement(blocks, cached);
        return l.use()->cached_rows(placement.get());
      },
      nb::arg("blocks"), nb::arg("cached"),
      "How many of the positions [0, cached) of a prefix hit have rows, counted from the first.");
  ledger.def(
      "wants_rows", [](PyLedger& l, GivenRequest request) { return l.use()->wants_rows(request); },
      nb::arg("request"));
  ledger.def_prop_ro(
      "num_wanting", [](PyLedger& l) { return l.use()->num_wanting(); },
      "How many current requests want rows. While it is 0, no step needs publishing.");
  ledger.def(
      "hold",
      [](std::shared_ptr<PyLedger> l, const RowPlan& plan) {
        Hold hold = l->use()->hold(plan);
        return PyHold(std::move(l), std::move(hold));
      },
      nb::arg("plan"), "Keeps the plan's blocks from being given away.");
  ledger.def(
      "held", [](PyLedger& l, GivenBlock block) { return l.use()->held(block); }, nb::arg("block"));
}

}  // namespace

void bind_ledger(nb::module_& m) {
  bind_hold(m);
  nb::class_<PyLedger> ledger(
      m, "Ledger",
      "Keeps account of one worker's KV cache, and says what to read. The scheduler reports its\n"
      "decisions, in the order in which it takes them. One thread at a time. A call that raises "
      "has\n"
      "changed nothing. An unknown request is a StateError, an unknown block a RangeError.");
  ledger.def(
      "__init__",
      [](PyLedger* self, std::int64_t num_blocks, int block_size, const Choice<Drafts>& drafts) {
        new (self) PyLedger(std::make_unique<Ledger>(num_blocks, block_size, drafts), "the Ledger");
      },
      nb::arg("num_blocks"), nb::arg("block_size"), nb::arg("drafts") = "tree",
      "Sizes are those of the anchor KV-cache group. An engine whose drafts never form a tree "
      "passes\n"
      "'chain', and need not say which drafts were accepted.");
  ledger.def_prop_ro("num_slots", [](PyLedger& l) { return l.use()->num_slots(); });
  ledger.def_prop_ro("block_size", [](PyLedger& l) { return l.use()->block_size(); });
  add_decisions(ledger);
  add_blocks(ledger);
  add_plans(ledger);
  add_batches(ledger);
  ledger.def("__repr__", [](PyLedger& l) {
    const auto use = l.use();
    return fmt::format("<Ledger of {} blocks of {} tokens, {} requests want rows>",
                       use->num_slots() / use->block_size(), use->block_size(), use->num_wanting());
  });
}

}  // namespace moetap::python
