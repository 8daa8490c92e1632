// The cost of a step's captures: one kernel per layer, until the device has finished.
#include <moetap/host_device.h>

#include <benchmark/benchmark.h>

#include <memory>

#include "bench/benchmarks.h"
#include "bench/fixture.h"
#include "bench/worker.h"
#include "bench/workload.h"
#include "gpu/internal/device_cache.h"

namespace moetap::bench {
namespace {

struct Captures {
  explicit Captures(const char* model)
      : shape(ModelShape::known(model)),
        device(make_host_device()),
        stream(device->make_stream()),
        cache(*device, shape, kMaxTokens, "bench") {
    const auto ids = random_ids<std::int32_t>(shape, kMaxTokens * shape.row_ids());
    topk_ids = upload(*device, *stream, ids.data(), ids.size() * sizeof ids[0]);
  }

  void step(std::int64_t tokens) {
    cache.begin_step(++number, tokens, 0, *stream);
    for (int layer = 0; layer < shape.num_layers(); ++layer) {
      const auto first = static_cast<std::int64_t>(layer) * kMaxTokens * shape.top_k();
      cache.capture(layer,
                    {.data = topk_ids.as<std::int32_t>() + first,
                     .type = IdType::int32,
                     .rows = tokens,
                     .columns = shape.top_k(),
                     .row_stride = shape.top_k()},
                    0, *stream);
    }
    stream->synchronize();
  }

  ModelShape shape;
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  DeviceCache cache;
  Buffer topk_ids;
  Step number = 0;
};

void run(benchmark::State& state, const char* model, std::int64_t tokens) {
  auto& captures = fixture<Captures>(std::string("capture/") + model, model);
  for ([[maybe_unused]] auto _ : state) captures.step(tokens);
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * sizeof(std::int32_t) *
                                                    captures.shape.row_ids()) *
                          tokens);
}

}  // namespace

void register_capture() {
  for (const char* model : kModels) {
    for (const std::int64_t tokens : kTokens) {
      benchmark::RegisterBenchmark(name("capture", "host", model, tokens).c_str(), run, model,
                                   tokens);
    }
  }
}

}  // namespace moetap::bench
