#include "ipc/ring/drop_note.h"

#include "lib/internal/injection.h"

namespace moetap {

void DropNote::write(const Drops& drops) noexcept {
  const DropRun& run = drops.run;
  note_.write({drops.after, run.first.value(), run.last.value(), run.total, run.given_up},
              [] { MOETAP_POINT("drop noting"); });
  MOETAP_POINT("drop noted");
}

std::optional<DropNote::Drops> DropNote::read() const {
  const auto words = note_.read();
  if (!words) return std::nullopt;
  const auto [after, first, last, total, given_up] = *words;
  return Drops{after, {Step(first), Step(last), total, given_up}};
}

}  // namespace moetap
