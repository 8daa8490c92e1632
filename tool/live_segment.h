// Observes a segment that a living worker writes.
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

// The changes between two looks.
struct Activity {
  std::string name;
  bool ring = false;
  std::string problem{};  // why it could not be read; else empty

  std::uint64_t steps = 0;  // increase of the last step's number
  Step last_step = 0;
  std::uint64_t rows = 0;  // new rows of a buffer; a row written twice counts once
  std::uint64_t waiting = 0;
  // Of at most kSample of these rows, spread evenly, so that the lock is kept only briefly.
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
