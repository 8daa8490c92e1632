// The host half of a worker, for benchmarks of readers.
#pragma once

#include <moetap/endpoint.h>
#include <moetap/types.h>

#include <cstddef>
#include <functional>
#include <span>
#include <string_view>

namespace moetap::bench {

// Publishes a step's narrow rows to these slots.
using Publish = std::function<void(Step, std::span<const Slot>, std::span<const std::byte>)>;

// transport: "shm" or "device". Owns the worker's end.
Publish make_publisher(std::string_view transport, const Endpoint& endpoint);

}  // namespace moetap::bench
