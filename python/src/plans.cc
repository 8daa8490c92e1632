// The plans that a Ledger returns.
#include <moetap/row_plan.h>

#include <fmt/format.h>

#include <span>
#include <vector>

#include "python/src/arrays.h"
#include "python/src/bindings.h"
#include "python/src/shared.h"

namespace moetap::python {
namespace {

template <class T>
nb::object ints_view(const std::vector<T>& values, nb::handle owner) {
  return view_of(as_span_of<const std::int64_t>(std::span<const T>(values)), owner);
}

nb::object windows_view(const std::vector<StepWindow>& windows, nb::handle owner) {
  static_assert(sizeof(StepWindow) == 2 * sizeof(std::uint64_t));
  return view_of(reinterpret_cast<const std::uint64_t*>(windows.data()), {windows.size(), 2},
                 {2, 1}, owner);
}

const RowPlan& plan_of(nb::handle self) { return nb::cast<const RowPlan&>(self); }

nb::list verdicts_of(const RowPlan& plan) {
  nb::list verdicts;
  for (const auto& [positions, state] : plan.verdicts) {
    verdicts.append(nb::make_tuple(to_range(positions), state));
  }
  return verdicts;
}

void bind_row_plan(nb::module_& m) {
  nb::class_<RowPlan> plan(
      m, "RowPlan",
      "The rows of these positions of one request, and the step that each must have. A plain "
      "value\n"
      "that stays right whatever is scheduled later. Read it with read_rows().");
  plan.def_prop_ro("request", [](const RowPlan& p) { return number(p.request); });
  plan.def_prop_ro(
      "positions", [](const RowPlan& p) { return to_range(p.range); },
      nb::for_getter(nb::sig("def positions(self) -> range")));
  plan.def_prop_ro(
      "slots", [](nb::handle self) { return ints_view(plan_of(self).slots, self); },
      nb::for_getter(nb::sig("def slots(self) -> numpy.typing.NDArray[numpy.int64]")),
      "Of the first of the positions: int64 [n], read-only. Later positions are missing.");
  plan.def_prop_ro(
      "windows", [](nb::handle self) { return windows_view(plan_of(self).windows, self); },
      nb::for_getter(nb::sig("def windows(self) -> numpy.typing.NDArray[numpy.uint64]")),
      "For each slot the first and last step that may have written it: uint64 [n][2], read-only.");
  plan.def_prop_ro(
      "blocks", [](nb::handle self) { return ints_view(plan_of(self).blocks, self); },
      nb::for_getter(nb::sig("def blocks(self) -> numpy.typing.NDArray[numpy.int64]")),
      "The blocks that contain `slots`, in order: int64, read-only.");
  plan.def_prop_ro("verdicts", &verdicts_of,
                   nb::for_getter(nb::sig("def verdicts(self) -> list[tuple[range, RowState]]")),
                   "States that the ledger already knows, whatever the buffer contains.");
  plan.def_prop_ro(
      "last_step", [](const RowPlan& p) { return number(p.last_step); },
      "Once its outcome is known all rows have arrived; 0: they have already.");
  plan.def("__len__", [](const RowPlan& p) { return p.range.size(); });
  plan.def("__repr__", [](const RowPlan& p) {
    return fmt::format("<RowPlan of request {}, tokens [{}, {}), after step {}>", number(p.request),
                       p.range.start, p.range.end, number(p.last_step));
  });
}

void bind_move_plan(nb::module_& m) {
  using Plan = SharedMovePlan;
  nb::class_<Plan> plan(m, "MovePlan", "Rows that move from slot to slot. See move_rows().");
  plan.def_prop_ro(
      "step", [](const Plan& p) { return number(p.get().step); },
      "The stamp of the rows from then on.");
  plan.def_prop_ro(
      "from_slots", [](const Plan& p) { return ints_view(p.get().from, keeper_of(p.owner())); },
      nb::for_getter(nb::sig("def from_slots(self) -> numpy.typing.NDArray[numpy.int64]")),
      "int64 [n], read-only.");
  plan.def_prop_ro(
      "to_slots", [](const Plan& p) { return ints_view(p.get().to, keeper_of(p.owner())); },
      nb::for_getter(nb::sig("def to_slots(self) -> numpy.typing.NDArray[numpy.int64]")),
      "int64 [n], read-only.");
  plan.def_prop_ro(
      "windows", [](const Plan& p) { return windows_view(p.get().windows, keeper_of(p.owner())); },
      nb::for_getter(nb::sig("def windows(self) -> numpy.typing.NDArray[numpy.uint64]")),
      "Of from_slots: uint64 [n][2], read-only.");
  plan.def_prop_ro(
      "last_step", [](const Plan& p) { return number(p.get().last_step); },
      "As in RowPlan; includes steps that may still write to to_slots.");
  plan.def(
      "append",
      [](Plan& p, const Plan& next) {
        const auto rows = next.owner();  // may be its own
        p.change().append(*rows);
      },
      nb::arg("next"),
      "Joins a plan of another request that has the same step. ArgumentError if they differ.");
  plan.def("__len__", [](const Plan& p) { return p.get().to.size(); });
  plan.def("__repr__", [](const Plan& p) {
    return fmt::format("<MovePlan of {} rows as step {}>", p.get().to.size(), number(p.get().step));
  });
}

void bind_fill_plan(nb::module_& m) {
  nb::class_<FillPlan> plan(m, "FillPlan",
                            "Rows that are put into slots from elsewhere. See fill_rows().");
  plan.def_prop_ro("step", [](const FillPlan& p) { return number(p.step); });
  plan.def_prop_ro(
      "slots",
      [](nb::handle self) { return ints_view(nb::cast<const FillPlan&>(self).slots, self); },
      nb::for_getter(nb::sig("def slots(self) -> numpy.typing.NDArray[numpy.int64]")),
      "int64 [n], read-only.");
  plan.def_prop_ro(
      "last_step", [](const FillPlan& p) { return number(p.last_step); },
      "The last step that may still write to the slots.");
  plan.def("__len__", [](const FillPlan& p) { return p.slots.size(); });
  plan.def("__repr__", [](const FillPlan& p) {
    return fmt::format("<FillPlan of {} rows as step {}>", p.slots.size(), number(p.step));
  });
}

}  // namespace

void bind_plans(nb::module_& m) {
  bind_row_plan(m);
  bind_move_plan(m);
  bind_fill_plan(m);
}

}  // namespace moetap::python
