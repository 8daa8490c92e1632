#include "test/simulation/witness.h"

#include <moetap/error.h>

namespace moetap::simulation {

Step Witness::poll() {
  meanwhile();
  const Step last = reader_->poll();
  oracle_.took_in(stage_, last);
  note_what_came();
  return last;
}

void Witness::note_what_came() {
  const Step last = oracle_.taken_in(stage_);
  if (last == noted_) return;
  noted_ = last;
  trace_.note("took_in", {{"stage", stage_}, {"step", to_json(last)}});
}

void Witness::wait_for(Step step, Milliseconds timeout) {
  const bool* failed = oracle_.failed(stage_, step);
  try {
    reader_->wait_for(step, timeout);
  } catch (const StepFailed&) {
    look_at_what_came(step);
    require((failed != nullptr && *failed) || oracle_.lost(stage_, step),
            "stage {} says that step {} failed", stage_, step);
    throw;
  } catch (const TimeoutError&) {
    poll();
    throw;
  }
  look_at_what_came(step);
  require(failed == nullptr || !*failed, "stage {} does not say that step {} failed", stage_, step);
}

// Up to the step that was waited for, and the last of a run of dropped ones that it is in.
void Witness::look_at_what_came(Step step) {
  oracle_.took_in_until(stage_, step);
  oracle_.took_in(stage_, reader_->dropped().last);
  note_what_came();
}

void Witness::read(std::span<const Slot> slots, std::span<const StepWindow> windows,
                   std::span<std::byte> rows, std::span<RowState> states) {
  look();
  reader_->read(slots, windows, rows, states);
}

void Witness::stamps(std::span<const Slot> slots, std::span<Step> written) {
  look();
  reader_->stamps(slots, written);
}

std::optional<Lease> Witness::lend(std::span<const Slot> slots, std::span<const StepWindow> windows,
                                   std::span<const std::byte*> rows, std::span<RowState> states,
                                   const std::string& holder) {
  look();
  return reader_->lend(slots, windows, rows, states, holder);
}

void Witness::put(Step step, std::span<const Slot> slots, std::span<const std::byte> rows,
                  std::span<const RowState> states) {
  look();
  reader_->put(step, slots, rows, states);
}

Step RequestWitness::poll() {
  const Step last = reader_->poll();
  oracle_.took_in(0, last);
  return last;
}

void RequestWitness::read(std::span<const Slot>, std::span<const StepWindow>, std::span<std::byte>,
                          std::span<RowState>) {
  throw Failure("rows by slot of a worker that keeps them by request");
}

void RequestWitness::put(Step, std::span<const Slot>, std::span<const std::byte>,
                         std::span<const RowState>) {
  throw Failure("a put to a worker that keeps rows by request");
}

std::optional<Routes> RequestWitness::take(RequestId request, TokenRange range) {
  Routes routes(shape(), range);
  try {
    reader_->take(request, range, routes.bytes(), routes.states(), Milliseconds(0));
  } catch (const TimeoutError&) {
    return std::nullopt;
  }
  return routes;
}

}  // namespace moetap::simulation
