// The Ledger as Python has it.
#pragma once

#include <moetap/ledger.h>

#include <string>
#include <utility>

#include "python/src/arrays.h"
#include "python/src/guarded.h"

namespace moetap::python {

using PyLedger = Guarded<Ledger>;

// Where a request's tokens lie, as given.
class GivenPlacement {
 public:
  GivenPlacement(Ints& blocks, std::int64_t cached)
      : placement_{.blocks = as_span_of<const BlockId>(blocks.get("blocks")), .cached = cached} {}
  const Placement& get() const { return placement_; }

 private:
  Placement placement_;
};

inline std::span<const BlockId> block_ids(Ints& blocks, const char* name) {
  return as_span_of<const BlockId>(blocks.get(name));
}

// ledger_batches.cc
void add_batches(nb::class_<PyLedger>& ledger);

}  // namespace moetap::python
