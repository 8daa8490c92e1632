#include <moetap/error.h>
#include <moetap/read_rows.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace moetap {
namespace {

void wait_for_outcome(Reader& reader, Step step, Milliseconds timeout) {
  if (step == 0) return;
  try {
    reader.wait_for(step, timeout);
  } catch (const StepFailed&) {
    // Its outcome is known, and so is that of every step before it.
  }
}

}  // namespace

Routes read_rows(Reader& reader, const RowPlan& plan) {
  Routes routes(reader.shape(), plan.range, Routes::Unset());
  const std::size_t row_bytes = reader.shape().row_bytes();
  const std::size_t count = plan.slots.size();
  if (count > 0) {
    reader.read(plan.slots, plan.windows, routes.bytes().first(count * row_bytes),
                routes.states().first(count));
  }
  std::ranges::fill(routes.bytes().subspan(count * row_bytes), std::byte{0xFF});
  for (const auto& [positions, state] : plan.verdicts) {
    const auto first = static_cast<std::size_t>(positions.start - plan.range.start);
    const auto size = static_cast<std::size_t>(positions.size());
    std::ranges::fill(routes.states().subspan(first, size), state);
    std::ranges::fill(routes.bytes().subspan(first * row_bytes, size * row_bytes), std::byte{0xFF});
  }
  return routes;
}

Routes read_rows(Reader& reader, const RowPlan& plan, Milliseconds timeout) {
  wait_for_outcome(reader, plan.last_step, timeout);
  return read_rows(reader, plan);
}

RoutesView view_rows(Reader& reader, const RowPlan& plan, const std::string& holder,
                     Milliseconds timeout) {
  wait_for_outcome(reader, plan.last_step, timeout);
  const auto size = static_cast<std::size_t>(plan.range.size());
  const std::size_t count = plan.slots.size();
  std::vector<const std::byte*> rows(size, nullptr);
  std::vector<RowState> states(size, RowState::missing);
  std::optional<Lease> lease = reader.lend(plan.slots, plan.windows, std::span(rows).first(count),
                                           std::span(states).first(count), holder);
  for (const auto& [positions, state] : plan.verdicts) {
    const auto first = static_cast<std::size_t>(positions.start - plan.range.start);
    const auto size_of_run = static_cast<std::size_t>(positions.size());
    std::ranges::fill(std::span(states).subspan(first, size_of_run), state);
    std::ranges::fill(std::span(rows).subspan(first, size_of_run), nullptr);
  }
  // Not lent, or no row is present that would be worth a lease.
  if (std::ranges::all_of(rows, [](const std::byte* row) { return row == nullptr; })) {
    return RoutesView(read_rows(reader, plan));
  }
  return RoutesView(reader.shape(), plan.range, std::move(rows), std::move(states),
                    std::move(*lease));
}

std::size_t move_rows(Reader& reader, const MovePlan& plan, Milliseconds timeout) {
  if (plan.from.empty()) return 0;
  wait_for_outcome(reader, plan.last_step, timeout);
  std::vector<std::byte> rows(plan.from.size() * reader.shape().row_bytes());
  std::vector<RowState> states(plan.from.size());
  reader.read(plan.from, plan.windows, rows, states);
  reader.transport_->put(plan.step, plan.to, rows, states);
  return static_cast<std::size_t>(std::ranges::count_if(states, has_routes));
}

void fill_rows(Reader& reader, const FillPlan& plan, std::span<const std::byte> rows,
               std::span<const RowState> states, Milliseconds timeout) {
  if (plan.slots.empty()) return;
  wait_for_outcome(reader, plan.last_step, timeout);
  reader.put(plan.step, plan.slots, rows, states);
}

void fill_rows(Reader& reader, const FillPlan& plan, std::span<const std::byte> rows,
               Milliseconds timeout) {
  fill_rows(reader, plan, rows, {}, timeout);
}

}  // namespace moetap
