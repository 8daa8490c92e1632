// The worker's side of a benchmark: a model's forward pass on the host device, captured.
#pragma once

#include <moetap/capturer.h>
#include <moetap/device.h>
#include <moetap/endpoint.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "bench/workload.h"

namespace moetap::bench {

class Worker {
 public:
  // transport: "shm" or "device".
  Worker(std::string_view transport, const Endpoint& endpoint);

  // A forward pass of so many tokens, with all layers captured. Returns when the device has
  // finished it. `wanted` is as in StepInfo.
  Step forward(std::int64_t tokens, std::optional<std::span<const TokenRange>> wanted = {});

  // A forward pass of which no rows are wanted. Returns the seconds that its calls of capture()
  // took.
  double time_captures(std::int64_t tokens);

  // Publishes it with the slots that start at `offset` in SlotMappings.
  void publish(std::int64_t offset);

 private:
  void capture_layers(std::int64_t tokens);

  ModelShape shape_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  Buffer topk_ids_;  // int32 [layer][kMaxTokens][top_k]
  Buffer slots_;     // int64, the working set
  Capturer capturer_;
  Step step_ = 0;
};

// `bytes` of device memory, copied from the host.
Buffer upload(Device& device, Stream& stream, const void* from, std::size_t bytes);

}  // namespace moetap::bench
