// What a DeviceCache must put into each step's record, computed plainly, with none of its code.
#pragma once

#include <moetap/device_fault.h>

#include <cstdint>
#include <vector>

#include "test/gpu/differential/cache_case.h"

namespace moetap::test {

struct Found {
  DeviceFault kind = DeviceFault::none;
  std::int64_t layer = 0;
  std::int64_t token = 0;
  std::int64_t value = 0;
  bool operator==(const Found&) const = default;
};

constexpr std::int64_t kAnything = -1;  // nothing is promised about an element

struct ExpectedStep {
  // Of the first kernel that found one. Its lanes have no order, so any of them may be reported.
  std::vector<Found> faults;
  std::vector<std::uint64_t> captured;  // [layer]
  std::vector<std::int64_t> slots;      // [row]: marked by the complement where it is missing
  std::vector<std::int64_t> ids;        // [row][layer][top_k]
  std::vector<std::int64_t> weights;    // the same, bits of the shape's type; empty without weights
};

class CacheReference {
 public:
  // `on_gpu`: all of a token's picks are compared there, and the first two by default on a host.
  CacheReference(const CacheCase& cache, bool on_gpu)
      : case_(cache), on_gpu_(on_gpu), captured_(cache.layers.size()) {}

  // The steps in order; the first has number 1.
  ExpectedStep run(const StepCase& step);

 private:
  // [token][layer][top_k] of the open step.
  std::size_t at(std::int64_t token, std::size_t layer, std::int64_t k) const;
  int compared() const;
  // The faults that two of a token's picks being the same expert makes.
  void find_repeat(std::size_t layer, std::int64_t token, const std::vector<std::int64_t>& ids,
                   std::vector<Found>& found) const;
  bool valid(std::int64_t id) const { return id >= 0 && id < case_.shape.num_experts(); }

  void capture(const StepCase& step, std::size_t layer);
  void launch_capture(const StepCase& step, std::size_t layer, std::vector<Found>& found);
  void launch_sink(const StepCase& step, std::size_t layer, std::vector<Found>& found);
  void write_output(const StepCase& step, std::size_t layer);
  void begin(const StepCase& step, std::size_t layer, std::vector<Found>& found);
  bool has_weights_for(const LayerCase& layer, const LayerStep& step) const;
  std::int64_t weight(const LayerCase& layer, std::uint32_t bits) const;
  void check(const StepCase& step);
  void check_layer(const StepCase& step, std::size_t layer, std::vector<Found>& found);
  void take_slots(const StepCase& step, ExpectedStep& expected);
  void close(const std::vector<Found>& found);

  const CacheCase& case_;
  bool on_gpu_;
  std::uint64_t number_ = 0;
  std::vector<std::uint64_t> captured_;
  // Of the open step:
  std::vector<Found> faults_;
  std::vector<bool> missing_;  // [token]
  std::vector<std::int64_t> ids_, weights_;
};

}  // namespace moetap::test
