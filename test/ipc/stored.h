// Lists of slots as they are stored: ~5 is slot 5, marked because its row misses a route.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "lib/internal/marked_slot.h"

namespace moetap::test {

class Stored : public std::vector<MarkedSlot> {
 public:
  Stored(std::initializer_list<std::int64_t> slots) {
    for (const std::int64_t slot : slots) {
      push_back(slot < 0 ? MarkedSlot::missing(Slot(~slot)) : MarkedSlot(Slot(slot)));
    }
  }
  Stored(std::span<const Slot> slots) {
    for (const Slot slot : slots) push_back(MarkedSlot(slot));
  }
  Stored(const std::vector<Slot>& slots) : Stored(std::span(slots)) {}
};

}  // namespace moetap::test
