// Carries out a Ledger's plans through a Reader.
#pragma once

#include <moetap/lease.h>
#include <moetap/reader.h>
#include <moetap/routes.h>
#include <moetap/row_plan.h>

#include <cstddef>
#include <span>
#include <string>

namespace moetap {

// Waits for plan.last_step, then reads. TimeoutError: the plan may be tried again. A step that
// failed is no error here, since its rows say that they are missing.
Routes read_rows(Reader& reader, const RowPlan& plan, Milliseconds limit);

// As above without waiting, for layouts that have no steps, or who knows that the step is there.
// Rows that have not arrived are missing or stale.
Routes read_rows(Reader& reader, const RowPlan& plan);

// As the first, without a copy where the transport can lend its rows: then it takes in no steps
// while the view is not detached, and `holder` is who it names for that.
RoutesView view_rows(Reader& reader, const RowPlan& plan, const std::string& holder,
                     Milliseconds limit);

// Moves the rows that are there and returns how many they are; the others are missing in their new
// place. All are read before the first is written, so that blocks may trade places. TimeoutError as
// above, before anything is changed.
std::size_t move_rows(Reader& reader, const MovePlan& plan, Milliseconds limit);

// `rows`: slots.size() * row_bytes. TimeoutError as above, RangeError for an id that the model does
// not have, both before anything is changed.
void fill_rows(Reader& reader, const FillPlan& plan, std::span<const std::byte> rows,
               Milliseconds limit);

}  // namespace moetap
