// moetap._capturer: the worker's end. Uses CUDA if there is a driver and a GPU.
#include "python/src/bindings.h"

NB_MODULE(_capturer, m) {
  m.doc() = "The worker's end of moetap. Import moetap instead.";
  // Has the types that both ends share, and the exceptions.
  nb::module_::import_("moetap._reader");
  moetap::python::bind_device(m);
  moetap::python::bind_capturer(m);
}
