// The system-wide names of an endpoint's objects, the same in every process of a user.
#pragma once

#include <moetap/endpoint.h>

#include <optional>
#include <string>
#include <string_view>

namespace moetap {

// Names of shared memory: the `shm` transport's buffer (by its layout), and the `device`
// transport's ring.
std::string buffer_name(const Endpoint& endpoint);
std::string ring_name(const Endpoint& endpoint);

// What a segment's name says about its endpoint. A name that the two functions above cannot make
// may be parsed too: compare the result with theirs.
struct NamedEndpoint {
  std::string instance;
  int dp_rank = 0;
  int stage = 0;
  int part = 0;
};
std::optional<NamedEndpoint> parse_name(std::string_view name);

}  // namespace moetap
