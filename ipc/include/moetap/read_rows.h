// Executes a Ledger's plans with a Reader.
#pragma once

#include <moetap/export.h>
#include <moetap/lease.h>
#include <moetap/reader.h>
#include <moetap/routes.h>
#include <moetap/row_plan.h>

#include <cstddef>
#include <span>
#include <string>

namespace moetap {

// Waits up to `timeout` for plan.last_step, then reads. After a TimeoutError the plan may be tried
// again. A failed step is no error here: its rows are missing.
MOETAP_API Routes read_rows(Reader& reader, const RowPlan& plan, Milliseconds timeout);

// As above without waiting, for layouts without steps, and for callers that know that the step has
// arrived. Rows that have not arrived are missing or stale.
MOETAP_API Routes read_rows(Reader& reader, const RowPlan& plan);

// As the first, without a copy where the transport can lend its rows. It then takes in no steps
// until the view is detached or destroyed. Messages name `holder` as the reason.
MOETAP_API RoutesView view_rows(Reader& reader, const RowPlan& plan, const std::string& holder,
                                Milliseconds timeout);

// Moves the rows that are present and returns their number; the others are missing in their new
// slots. All rows are read before the first is written, so that blocks may trade places.
// TimeoutError as above, before anything is changed.
MOETAP_API std::size_t move_rows(Reader& reader, const MovePlan& plan, Milliseconds timeout);

// Puts `rows`, plan.slots.size() * row_bytes bytes. `states` is as in Reader::put. TimeoutError as
// above, RangeError for an id that the model does not have, both before anything is changed.
MOETAP_API void fill_rows(Reader& reader, const FillPlan& plan, std::span<const std::byte> rows,
                          std::span<const RowState> states, Milliseconds timeout);
// As above, with all rows present.
MOETAP_API void fill_rows(Reader& reader, const FillPlan& plan, std::span<const std::byte> rows,
                          Milliseconds timeout);

}  // namespace moetap
