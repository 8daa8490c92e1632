// Names the model of an endpoint in this process, for DeviceCache.
#pragma once

#include <moetap/endpoint.h>

#include <string>

namespace moetap {

inline std::string owner_name(const Endpoint& endpoint) {
  return endpoint.instance + "/" + std::to_string(endpoint.dp_rank);
}

}  // namespace moetap
