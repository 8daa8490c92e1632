// Runs a Ledger's plans with a Reader: copies, views, moves, fills, and rows that wait.
#include <moetap/pending_rows.h>
#include <moetap/read_rows.h>

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include "python/src/arrays.h"
#include "python/src/bindings.h"
#include "python/src/ledger.h"
#include "python/src/reader.h"
#include "python/src/shared.h"

namespace moetap::python {
namespace {

SharedRoutes read_plan(PyReader& r, const RowPlan& plan, const Timeout& timeout, bool wait) {
  const auto use = r.use();
  if (!wait) {
    const ReleasedGil release;
    return SharedRoutes(read_rows(*use, plan));
  }
  return SharedRoutes(wait_in_parts(
      r.timeout(timeout), [&](Milliseconds part) { return read_rows(*use, plan, part); }));
}

std::size_t move_plan(PyReader& r, const SharedMovePlan& plan, const Timeout& timeout) {
  const auto use = r.use();
  const auto rows = plan.owner();
  return wait_in_parts(r.timeout(timeout),
                       [&](Milliseconds part) { return move_rows(*use, *rows, part); });
}

void fill_plan(PyReader& r, const FillPlan& plan, nb::handle rows, const Timeout& timeout,
               nb::handle states) {
  const auto use = r.use();
  HeldBuffer held;
  const auto bytes = bytes_of(
      held, rows, "rows",
      {std::ssize(plan.slots), static_cast<std::int64_t>(use->shape().row_bytes())}, false);
  const std::vector<std::byte> own(bytes.begin(), bytes.end());  // checked rows must not change
  const std::vector<RowState> of_rows = states_of(states, plan.slots.size());
  wait_in_parts(r.timeout(timeout),
                [&](Milliseconds part) { fill_rows(*use, plan, own, of_rows, part); });
}

// Rows in the reader's memory. The lease ends when this is released, or gone, and no array of its
// rows is left; only then can the reader go.
class PyView {
 public:
  PyView(std::shared_ptr<PyReader> reader, RoutesView view)
      : loan_(std::make_shared<Loan>(std::move(reader), std::move(view))) {}

  const RoutesView& get() const {
    if (!loan_) throw StateError("this RoutesView was released; make a new one with view_rows()");
    return loan_->view;
  }
  nb::object row(std::int64_t position) const {
    const RoutesView& view = get();
    const ModelShape& shape = view.shape();
    const auto bytes = view.row(position);
    if (const auto state = view.states()[static_cast<std::size_t>(position - view.range().start)];
        state != RowState::present) {
      throw RowsNotPresent(
          fmt::format("the row of token {} is {}; see states", position, row_state_name(state)));
    }
    const auto layers = static_cast<std::size_t>(shape.num_layers());
    const auto top_k = static_cast<std::size_t>(shape.top_k());
    const auto stride = static_cast<std::int64_t>(top_k);
    const nb::object owner = keeper_of(loan_);
    if (shape.id_type() == IdType::uint8) {
      return view_of(reinterpret_cast<const std::uint8_t*>(bytes.data()), {layers, top_k},
                     {stride, 1}, owner);
    }
    return view_of(reinterpret_cast<const std::uint16_t*>(bytes.data()), {layers, top_k},
                   {stride, 1}, owner);
  }
  SharedRoutes detach() {
    get();
    if (loan_.use_count() > 1) {
      throw StateError("arrays of this RoutesView's rows are in use; delete them before detach()");
    }
    SharedRoutes routes(std::move(loan_->view).detach());
    loan_.reset();
    return routes;
  }
  void release() { loan_.reset(); }
  bool released() const { return !loan_; }

 private:
  struct Loan {
    Loan(std::shared_ptr<PyReader> of, RoutesView rows)
        : reader(std::move(of)), use(*reader), view(std::move(rows)) {}
    std::shared_ptr<PyReader> reader;
    PyReader::Loaned use;
    RoutesView view;
  };
  std::shared_ptr<Loan> loan_;
};

PyView view_plan(std::shared_ptr<PyReader> r, const RowPlan& plan, const std::string& holder,
                 const Timeout& timeout) {
  auto view = [&] {
    const auto use = r->use();
    return wait_in_parts(r->timeout(timeout),
                         [&](Milliseconds part) { return view_rows(*use, plan, holder, part); });
  }();
  return PyView(std::move(r), std::move(view));
}

void bind_view(nb::module_& m) {
  nb::class_<PyView> view(
      m, "RoutesView",
      "Rows where the reader has them. While a view, or an array of one of its rows, is out, the "
      "reader\n"
      "takes in no steps and cannot be closed: release it soon, or detach() it, which copies.");
  view.def_prop_ro("shape", [](const PyView& v) { return ModelShape(v.get().shape()); });
  view.def_prop_ro(
      "positions", [](const PyView& v) { return to_range(v.get().range()); },
      nb::for_getter(nb::sig("def positions(self) -> range")));
  view.def_prop_ro(
      "owned", [](const PyView& v) { return v.get().owned(); },
      "Whether the rows are a copy, since this transport cannot lend them.");
  view.def_prop_ro(
      "states",
      [](const PyView& v) {
        const auto states = v.get().states();
        const NewArray made = new_array("uint8", {static_cast<std::int64_t>(states.size())});
        std::ranges::copy(std::as_bytes(states), made.data);
        return made.array;
      },
      nb::for_getter(nb::sig("def states(self) -> numpy.typing.NDArray[numpy.uint8]")),
      "The RowState of each row: a copy, uint8 [n].");
  view.def(
      "row", &PyView::row, nb::arg("position"),
      nb::sig("def row(self, position: int) -> numpy.typing.NDArray[typing.Any]"),
      "Expert ids [layers][top_k] of a position of the sequence, read-only and without a copy.\n"
      "RowsNotPresent if its row is not present.");
  view.def("detach", &PyView::detach, "Returns the rows as Routes and ends the lease.");
  view.def("release", &PyView::release, "Ends the lease, once no array of its rows is left.");
  view.def_prop_ro("released", &PyView::released);
  view.def(
      "__enter__", [](nb::handle self) { return nb::borrow(self); },
      nb::sig("def __enter__(self) -> RoutesView"));
  view.def(
      "__exit__", [](PyView& v, nb::args) { v.release(); },
      nb::sig("def __exit__(self, *_: object) -> None"));
  view.def("__repr__", [](const PyView& v) {
    if (v.released()) return std::string("<RoutesView, released>");
    return fmt::format("<RoutesView of tokens [{}, {}), {}>", v.get().range().start,
                       v.get().range().end, v.get().owned() ? "copied" : "lent");
  });
}

// Holds its ledger and its reader.
class PyPending {
 public:
  PyPending(std::shared_ptr<PyLedger> ledger, std::shared_ptr<PyReader> reader)
      : ledger_(std::move(ledger)),
        reader_(std::move(reader)),
        rows_(*ledger_->use(), *reader_->use()) {}
  PyPending(const PyPending&) = delete;
  PyPending& operator=(const PyPending&) = delete;

  PendingRows& rows() { return rows_; }
  PyLedger& ledger() { return *ledger_; }
  PyReader& reader() { return *reader_; }

  // For calls that end holds or read. The reader stays as it is until they are done.
  template <class Call>
  auto with(const Timeout& timeout, Call&& call) {
    const auto ledger = ledger_->use();
    const auto reader = reader_->use();
    return wait_in_parts(reader_->timeout(timeout), call);
  }

 private:
  std::shared_ptr<PyLedger> ledger_;
  std::shared_ptr<PyReader> reader_;
  PendingRows rows_;
};

void bind_pending(nb::module_& m) {
  nb::class_<PyPending> pending(
      m, "PendingRows",
      "Plans that are not yet read, by request. A waiting plan holds its blocks. The scheduler "
      "either\n"
      "allocates others (Ledger.held), or has the rows read early (take_early).");
  pending.def(
      "__init__",
      [](PyPending* self, std::shared_ptr<PyLedger> ledger, std::shared_ptr<PyReader> reader) {
        new (self) PyPending(std::move(ledger), std::move(reader));
      },
      nb::arg("ledger"), nb::arg("reader"));
  pending.def(
      "add",
      [](PyPending& p, const RowPlan& plan) {
        const auto ledger = p.ledger().use();
        p.rows().add(plan);
      },
      nb::arg("plan"), "Adds a request's plan. StateError if the request's rows already wait.");
  pending.def(
      "take_early",
      [](PyPending& p, Ints blocks, const Timeout& timeout) {
        const auto ids = blocks.copy("blocks");
        p.with(timeout, [&](Milliseconds part) {
          p.rows().take_early(as_span_of<const BlockId>(std::span<const std::int64_t>(ids)), part);
        });
      },
      nb::arg("blocks"), nb::arg("timeout") = nb::none(),
      "Reads the rows of all requests that hold any of these blocks, before they get new tokens.");
  pending.def(
      "collect",
      [](PyPending& p, GivenRequest request, const Timeout& timeout) {
        return SharedRoutes(
            p.with(timeout, [&](Milliseconds part) { return p.rows().collect(request, part); }));
      },
      nb::arg("request"), nb::arg("timeout") = nb::none(),
      "Returns the request's rows, whether read now or early, and removes its plan.");
  pending.def(
      "drop",
      [](PyPending& p, GivenRequest request) {
        const auto ledger = p.ledger().use();
        p.rows().drop(request);
      },
      nb::arg("request"), "Discards the request's plan and rows.");
  pending.def(
      "__contains__",
      [](PyPending& p, GivenRequest request) {
        const auto ledger = p.ledger().use();
        return p.rows().contains(request);
      },
      nb::arg("request"));
  pending.def("__len__", [](PyPending& p) {
    const auto ledger = p.ledger().use();
    return p.rows().size();
  });
  pending.def("__repr__", [](PyPending& p) {
    return fmt::format("<PendingRows of {} requests>", p.rows().size());
  });
}

}  // namespace

void bind_read_rows(nb::module_& m) {
  m.def("read_rows", &read_plan, nb::arg("reader"), nb::arg("plan"),
        nb::arg("timeout") = nb::none(), nb::kw_only(), nb::arg("wait") = true,
        "Waits for the plan's last step, then reads. TimeoutError after `timeout` seconds (by "
        "default\n"
        "the endpoint's timeout); the plan may then be tried again. A failed step is no error: its "
        "rows\n"
        "are missing. wait=False: what has arrived by now.");
  m.def("move_rows", &move_plan, nb::arg("reader"), nb::arg("plan"),
        nb::arg("timeout") = nb::none(),
        "Moves the rows that are present and returns their number; the others are missing.");
  m.def(
      "fill_rows", &fill_plan, nb::arg("reader"), nb::arg("plan"), nb::arg("rows"),
      nb::arg("timeout") = nb::none(), nb::kw_only(), nb::arg("states") = nb::none(),
      nb::sig(
          "def fill_rows(reader: Reader, plan: FillPlan, rows: numpy.typing.NDArray[numpy.uint8] | "
          "bytes, timeout: float | None = None, *, "
          "states: numpy.typing.NDArray[numpy.uint8] | bytes | None = None) -> None"),
      "Puts rows uint8 [n][row_bytes] into the plan's slots, after checking them. states as in "
      "Reader.put().");
  bind_view(m);
  m.def("view_rows", &view_plan, nb::arg("reader"), nb::arg("plan"), nb::arg("holder"),
        nb::arg("timeout") = nb::none(),
        "As read_rows(), without a copy where the transport can lend its rows. Messages name "
        "`holder`\n"
        "as the reason why the reader takes in no steps.");
  bind_pending(m);
}

}  // namespace moetap::python
