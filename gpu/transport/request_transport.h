// The `device` transport's worker end if the worker keeps the rows (HostCache::per_request).
#pragma once

#include <moetap/device.h>
#include <moetap/endpoint.h>
#include <moetap/transport.h>

#include <memory>

#include "gpu/transport/request_keeper.h"

namespace moetap {

std::unique_ptr<Transport> make_request_transport(Device& device, const Endpoint& endpoint,
                                                  const DeviceTransportOptions& options,
                                                  Keeping keeping = Keeping::in_a_thread);

}  // namespace moetap
