// A buffer whose worker has died.
#pragma once

#include <moetap/endpoint.h>
#include <moetap/routes.h>
#include <moetap/types.h>

#include <span>

#include "tool/segment_file.h"

namespace moetap::tool {

// Its rows and their states, read under the buffer's lock: schedulers may still live and put rows
// there. MismatchError. TimeoutError if the lock is not free within the endpoint's timeout.
void read_dead(const SegmentFile& file, const Endpoint& endpoint, std::span<const Slot> slots,
               StepWindow window, Routes& routes);

}  // namespace moetap::tool
