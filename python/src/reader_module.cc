// moetap._reader: the scheduler's end, and what both ends share. It never loads CUDA.
#include <moetap/version.h>

#include "python/src/bindings.h"
#include "python/src/errors.h"

NB_MODULE(_reader, m) {
  m.doc() = "The scheduler's end of moetap. Import moetap instead.";
  m.def("version", &moetap::version, "The release of the library that runs.");
  moetap::python::translate_errors();
  moetap::python::bind_shape(m);
  moetap::python::bind_endpoint(m);
  moetap::python::bind_routes(m);
  moetap::python::bind_plans(m);
  moetap::python::bind_ledger(m);
  moetap::python::bind_reader(m);
  moetap::python::bind_read_rows(m);
  moetap::python::bind_stores(m);
  moetap::python::bind_segments(m);
}
