// A worker: captures the picks of a simulated model's router, and publishes them step by step.
//
//   worker [shm|device] [instance]
#include <moetap/capturer.h>
#include <moetap/device.h>
#include <moetap/error.h>
#include <moetap/slots.h>
#include <moetap/transport.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>

#include "example.h"

namespace {

// Your model's router. Any top_k distinct expert ids do here.
std::int32_t expert(std::int64_t position, int layer, int k) {
  return static_cast<std::int32_t>((position * 7 + layer * 3 + k * 5) % 16);
}

// Prints the steps whose rows are missing, and why; the scheduler is told too. With the device
// transport, this is known some time after publish().
void report_failures(moetap::Capturer& capturer) {
  for (const moetap::StepFailed& failure : capturer.take_failures()) {
    std::fprintf(stderr, "worker: %s\n", failure.what());
  }
}

void run(const std::string& transport, const std::string& instance) {
  const moetap::Endpoint endpoint = example::endpoint(instance);
  const moetap::ModelShape& shape = endpoint.shape;

  // A GPU if there is one. Everything that is captured goes through one stream.
  const auto device = moetap::open_device("auto");
  const auto stream = device->make_stream();

  // Both transports have the same interface. This one owns the shared memory until it is destroyed.
  moetap::Capturer capturer(transport == "shm" ? moetap::make_shm_transport(*device, endpoint)
                                               : moetap::make_device_transport(*device, endpoint));
  for (const int layer : shape.moe_layers()) capturer.bind(layer);

  // The topk_ids that a router would leave in device memory: int32 [tokens][top_k]. Here they are
  // copied from the host, where each layer has its own part.
  const auto layer_ids = static_cast<std::size_t>(endpoint.max_tokens * shape.top_k());
  const auto layer_bytes = layer_ids * sizeof(std::int32_t);
  const moetap::Buffer topk_ids = device->allocate(layer_bytes);
  const moetap::Buffer slot_mapping = device->allocate(endpoint.max_tokens * sizeof(moetap::Slot));
  const moetap::Buffer host_ids =
      device->allocate_pinned(layer_bytes * static_cast<std::size_t>(shape.num_layers()));
  const moetap::Buffer host_slots =
      device->allocate_pinned(endpoint.max_tokens * sizeof(moetap::Slot));

  std::printf("worker: %s on %s, %s\n", transport.c_str(), device->name().c_str(),
              shape.to_string().c_str());
  std::fflush(stdout);
  for (std::int64_t number = 1; number <= example::kSteps; ++number) {
    const moetap::Step step(number);
    // The first step runs the prompt; every other step runs the token sampled before it.
    const auto last = example::kPrompt + number - 1;
    const moetap::TokenRange tokens{step == 1 ? 0 : last - 1, last};

    try {
      // Gives the step up if something is thrown before it is published.
      moetap::StepGuard open(capturer, {.step = step, .num_tokens = tokens.size()}, *stream);

      // The slots of the tokens' keys and values in the KV cache, which are the slots of their
      // routes too.
      const auto slots = moetap::slots_of(example::kBlocks, example::kBlockSize, tokens);
      std::copy(slots.begin(), slots.end(), host_slots.as<moetap::Slot>());
      stream->copy(slot_mapping.data(), host_slots.data(), slots.size() * sizeof(moetap::Slot));

      for (const int layer : shape.moe_layers()) {
        auto* const layer_start = host_ids.as<std::int32_t>(layer_bytes * layer);
        auto* id = layer_start;
        for (std::int64_t position = tokens.start; position < tokens.end; ++position) {
          for (int k = 0; k < shape.top_k(); ++k) *id++ = expert(position, layer, k);
        }
        stream->copy(topk_ids.data(), layer_start, layer_bytes);
        // One buffer serves all layers: capture() is ordered by the stream, as the copies are.
        capturer.capture(layer,
                         {.data = topk_ids.data(),
                          .type = moetap::IdType::int32,
                          .rows = tokens.size(),
                          .columns = shape.top_k(),
                          .row_stride = shape.top_k()},
                         *stream);
      }
      open.publish(slot_mapping.as<moetap::Slot>());
    } catch (const std::exception& error) {
      // The forward pass failed, or the scheduler does not keep up. The step's rows are missing,
      // and the engine continues.
      std::fprintf(stderr, "worker: step %d: %s\n", static_cast<int>(number), error.what());
    }
    report_failures(capturer);
    stream->synchronize();  // an engine waits for the sampled tokens; host_ids is free again
  }

  capturer.finalize(moetap::Step(example::kSteps), std::chrono::seconds(30));
  report_failures(capturer);
  std::printf("worker: %d steps published. Press Enter to end.\n",
              static_cast<int>(example::kSteps));
  std::fflush(stdout);
  std::cin.get();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc > 1 ? argv[1] : "device", argc > 2 ? argv[2] : "example");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "worker: %s\n", error.what());
    return 1;
  }
}
