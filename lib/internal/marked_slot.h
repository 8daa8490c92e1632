// A slot with a mark, as step records and the lists of writers have it.
#pragma once

#include <moetap/types.h>

#include <cstdint>
#include <span>
#include <type_traits>

namespace moetap {

// The slot of a row to be written, marked if the row has a missing route: the row is then missing,
// whatever its bytes. A marked slot is stored as its complement, which is negative. Device code
// writes them to records, and so they are part of the ring's layout.
class [[gnu::may_alias]] MarkedSlot {
 public:
  constexpr MarkedSlot() = default;
  // Not marked. `slot` is at least 0.
  MOETAP_DEVICE constexpr explicit MarkedSlot(Slot slot) : stored_(slot.value()) {}
  MOETAP_DEVICE static constexpr MarkedSlot missing(Slot slot) {
    return MarkedSlot(Slot(~slot.value()));
  }

  MOETAP_DEVICE constexpr Slot slot() const { return Slot(is_missing() ? ~stored_ : stored_); }
  MOETAP_DEVICE constexpr bool is_missing() const { return stored_ < 0; }

  MOETAP_DEVICE friend constexpr bool operator==(MarkedSlot a, MarkedSlot b) {
    return a.stored_ == b.stored_;
  }

 private:
  std::int64_t stored_ = 0;
};
static_assert(sizeof(MarkedSlot) == 8 && std::is_trivially_copyable_v<MarkedSlot>);

// Slots of which none is marked, looked at as a list that could have marks.
inline std::span<const MarkedSlot> unmarked(std::span<const Slot> slots) {
  return {reinterpret_cast<const MarkedSlot*>(slots.data()), slots.size()};
}

}  // namespace moetap
