// What things of an endpoint are called in the system, the same in every process of a user.
#pragma once

#include <moetap/endpoint.h>

#include <optional>
#include <string>
#include <string_view>

namespace moetap {

// Shared memory: of the `shm` transport (by its layout), and of the `device` transport's ring.
std::string buffer_name(const Endpoint& endpoint);
std::string ring_name(const Endpoint& endpoint);

// What a segment's name says of its endpoint. Names that the two functions above would not make
// may be taken for one of theirs: compare.
struct NamedEndpoint {
  std::string instance;
  int dp_rank = 0;
  int stage = 0;
  int part = 0;
};
std::optional<NamedEndpoint> parse_name(std::string_view name);

}  // namespace moetap
