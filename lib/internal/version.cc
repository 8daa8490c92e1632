#include <moetap/version.h>

namespace moetap {

const char* version() noexcept { return MOETAP_VERSION; }

}  // namespace moetap
