// A stream that runs nothing, and notes what a DeviceCache has queued on it.
#pragma once

#include <moetap/device.h>
#include <moetap/error.h>
#include <moetap/types.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "gpu/capture/kernels.h"

namespace moetap::test {

class RecordingStream final : public Stream {
 public:
  struct Capture {
    int layer;
    std::int64_t rows;
    std::int64_t first_row;
    Distinct distinct;
  };

  std::vector<DeviceStep> steps;
  std::vector<Capture> captures;  // of int32 ids
  int ended = 0;                  // steps
  bool recording = false;         // a graph, so that no step can end

  void launch(const KernelCall& call) override {
    const std::string_view kernel = call.entry().name;
    if (kernel == "BeginStepKernel") {
      steps.push_back(static_cast<const BeginStepKernel*>(call.arguments())->value);
    } else if (kernel == "CaptureKernel<std::int32_t>") {
      const auto& capture = *static_cast<const CaptureKernel<std::int32_t>*>(call.arguments());
      captures.push_back(
          {capture.sink.layer, capture.rows, capture.sink.first_row, capture.sink.distinct});
    }
  }
  void record(Event&) override {
    if (recording) throw StateError("the stream records a graph");
    ++ended;
  }
  bool idle() override { return true; }

  void launch(const Graph&) override {}
  void copy(void*, const void*, std::size_t) override {}
  void fill(void*, std::uint8_t, std::size_t) override {}
  void wait(Event&) override {}
  void call(void (*)(void*), void*) override {}
  void synchronize() override {}
  void begin_capture() override {}
  std::unique_ptr<Graph> end_capture() override { return nullptr; }
};

}  // namespace moetap::test
