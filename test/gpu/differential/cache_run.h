// Runs a CacheCase on a device.
#pragma once

#include <moetap/device.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "gpu/internal/device_cache.h"
#include "test/gpu/differential/cache_case.h"

namespace moetap::test {

// What memory has where nothing was written.
inline constexpr std::byte kUnwritten{0xA5};

class CacheRun {
 public:
  CacheRun(Device& device, const CacheCase& cache);

  // The steps in order. Returns the record with as much memory before and after it (kMargin), which
  // must be left alone, as must be what is between the record's parts.
  static constexpr std::size_t kMargin = 256;
  std::vector<std::byte> run(const StepCase& step);

 private:
  // One layer's part of ids_ and weights_, in bytes from their start.
  struct Place {
    std::size_t ids = 0;
    std::size_t weights = 0;
  };
  void place_layers();
  void write_layer(const StepCase& step, std::size_t layer);
  void upload_picks(const StepCase& step);
  void launch(const StepCase& step, std::size_t layer);
  void launch_sink(const StepCase& step, std::size_t layer);
  void launch_layers(const StepCase& step);

  const CacheCase& case_;
  Device& device_;
  std::unique_ptr<Stream> stream_;
  DeviceCache cache_;
  std::vector<Place> places_;
  std::vector<RouteSink> sinks_;      // [layer], of layers that have one
  std::vector<RouteOutput> outputs_;  // the same
  std::vector<std::byte> host_ids_, host_weights_;
  Buffer ids_, weights_, pinned_;
  std::unique_ptr<Graph> graph_;
  std::int64_t number_ = 0;
};

}  // namespace moetap::test
