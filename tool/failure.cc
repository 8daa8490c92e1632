#include "tool/failure.h"

#include <stdexcept>

namespace moetap::tool {

ExitStatus status_of_exception() {
  try {
    throw;
  } catch (const NotThere&) {
    return kNotThere;
  } catch (const MismatchError&) {
    return kDamaged;
  } catch (const RowsNotPresent&) {
    return kNotPresent;
  } catch (const TimeoutError&) {
    return kBusy;
  } catch (const std::logic_error&) {  // ArgumentError, RangeError
    return kUsage;
  } catch (...) {
    return kFailed;
  }
}

}  // namespace moetap::tool
