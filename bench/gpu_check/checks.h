// The checks, one file each.
#pragma once

#include <moetap/device.h>
#include <moetap/endpoint.h>

#include <optional>

#include "bench/gpu_check/figures.h"
#include "bench/scheduler.h"

namespace moetap::bench {

// The cost of a layer's capture inside a graph: alone, after a router, and fused with it.
void check_capture(Device& device, Figures& figures);

// The snapshot compared with a device copy, and the copy to the host with one to device memory.
void check_transfer(Device& device, Figures& figures);

// Both transports' schedulers, in processes that are started before any device is opened.
struct Schedulers {
  Schedulers();
  Endpoint shm_endpoint;
  Endpoint device_endpoint;
  // Ended before their worker, as they would report its end.
  std::optional<Scheduler> shm;
  std::optional<Scheduler> device;
};

// The cost of both transports for a worker, by calls and as a graph, and the time until the rows
// are visible to the scheduler. The forward pass takes 2, 5 and 10 ms.
void check_steps(Device& device, Schedulers& schedulers, Figures& figures);

}  // namespace moetap::bench
