// The checks, a file each.
#pragma once

#include <moetap/device.h>
#include <moetap/endpoint.h>

#include <optional>

#include "bench/gpu_check/figures.h"
#include "bench/scheduler.h"

namespace moetap::bench {

// What a layer's capture costs inside a graph: alone, behind a router, and fused with it.
void check_capture(Device& device, Figures& figures);

// Snapshot against a device copy, the copy to the host against one to memory of the device's.
void check_transfer(Device& device, Figures& figures);

// Both transports' schedulers, in processes that are made before any device is opened.
struct Schedulers {
  Schedulers();
  Endpoint shm_endpoint;
  Endpoint device_endpoint;
  // Ended before their worker, whose end they would complain about.
  std::optional<Scheduler> shm;
  std::optional<Scheduler> device;
};

// What both transports cost a worker whose forward pass takes 2, 5 and 10 ms, by calls and as a
// graph, and when the rows are visible to the scheduler.
void check_steps(Device& device, Schedulers& schedulers, Figures& figures);

}  // namespace moetap::bench
