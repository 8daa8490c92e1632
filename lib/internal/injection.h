// Guards that a test can switch off, and points at which it can stop the process. Only the tests'
// own build of the library (test/injection) has them; a normal build has neither. A point comes
// after each action of a transport that another process can see: a file created or removed, a lock
// taken or released, a store to shared memory that a later one depends on.
#pragma once

#if defined(MOETAP_INJECTION)

#include <string_view>

namespace moetap::injection {

// Whether the guard of this name is switched off.
bool is_off(std::string_view guard);
// Execution has reached this point.
void reach(std::string_view point) noexcept;

}  // namespace moetap::injection

// As a condition: if (!MOETAP_OFF("H14 full ring") && full) wait();
#define MOETAP_OFF(guard) (::moetap::injection::is_off(guard))
#define MOETAP_POINT(point) (::moetap::injection::reach(point))

#else

#define MOETAP_OFF(guard) false
#define MOETAP_POINT(point) static_cast<void>(0)

#endif
