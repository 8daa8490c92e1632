// What a segment says about itself, as far as it is plausible.
#pragma once

#include <moetap/endpoint.h>
#include <moetap/segments.h>

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tool/segment_file.h"

namespace moetap::tool {

struct Inspection {
  SegmentInfo segment;
  std::string problem{};               // why a worker cannot have made it; else empty
  std::optional<Endpoint> endpoint{};  // of a native buffer or a ring without a problem
  Step last_step = 0;                  // the last step with a published outcome
  std::vector<std::pair<Step, std::string>> failed_steps{};  // a buffer's latest, with the reasons

  std::int64_t rows_present = 0;  // a native buffer's
  bool lock_held = false;
  pid_t lock_holder = 0;      // 0 also if it cannot be named: a process in another PID namespace
  std::uint64_t waiting = 0;  // records of a ring that its reader has not taken
  DroppedSteps dropped{};     // by a ring's worker, so far
};

// Reads the segment and changes nothing, except that it takes a buffer's lock to see whether it is
// free. Reports the segment's present state, not that when it was found. NotThere if it has been
// removed.
Inspection inspect(const SegmentInfo& segment);

// The endpoint of a native buffer or a ring. The instance and rank come from its name, all else
// from its control block. MismatchError that says what is not valid. TimeoutError if it is still
// being created.
Endpoint endpoint_of(const SegmentFile& file);

nlohmann::json to_json(const Inspection& inspection);
std::string to_text(const Inspection& inspection);

}  // namespace moetap::tool
