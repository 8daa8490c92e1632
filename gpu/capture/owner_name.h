// Names the model of an endpoint in this process, for DeviceCache.
#pragma once

#include <moetap/endpoint.h>

#include <fmt/format.h>

#include <string>

namespace moetap {

inline std::string owner_name(const Endpoint& endpoint) {
  return fmt::format("{}/{}/{}/{}", endpoint.instance, endpoint.dp_rank, endpoint.stage,
                     endpoint.part);
}

}  // namespace moetap
