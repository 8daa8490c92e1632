// What each source file adds to its module.
#pragma once

#include "python/src/common.h"

namespace moetap::python {

// moetap._reader, in this order: what a function takes or returns is bound before it.
void bind_shape(nb::module_& m);
void bind_endpoint(nb::module_& m);
void bind_routes(nb::module_& m);
void bind_plans(nb::module_& m);
void bind_ledger(nb::module_& m);
void bind_reader(nb::module_& m);
void bind_read_rows(nb::module_& m);
void bind_stores(nb::module_& m);
void bind_segments(nb::module_& m);

// moetap._capturer
void bind_device(nb::module_& m);
void bind_capturer(nb::module_& m);

}  // namespace moetap::python
