// A segment that a living worker writes, looked at again and again.
#pragma once

#include <moetap/endpoint.h>
#include <moetap/read_transport.h>
#include <moetap/segments.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tool/heat_map.h"
#include "tool/segment_file.h"

namespace moetap::tool {

// What happened between two looks.
struct Activity {
  std::string name;
  bool ring = false;
  std::string problem{};  // why it could not be looked at; else empty

  std::uint64_t steps = 0;  // numbers that the last step went up by
  Step last_step = 0;
  std::uint64_t rows = 0;  // a buffer's that are newer: of rows written twice, once
  std::uint64_t waiting = 0;
  // Of at most kSample of those rows, spread evenly, so that one lock's hold is short.
  std::uint64_t sampled = 0;
  std::vector<LayerLoad> load{};
};

class LiveSegment {
 public:
  static constexpr std::size_t kSample = 2048;

  explicit LiveSegment(const SegmentInfo& segment);

  const SegmentInfo& segment() const { return segment_; }
  Activity look();

 private:
  void look_at_buffer(Activity& activity);
  void sample(const std::vector<Slot>& slots, StepWindow window, Activity& activity);

  SegmentInfo segment_;
  std::optional<Endpoint> endpoint_;
  std::unique_ptr<SegmentFile> file_;
  std::unique_ptr<SlotReadTransport> reader_;
  Step last_step_ = 0;
};

}  // namespace moetap::tool
