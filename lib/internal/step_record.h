// One step's rows in flight. A device's snapshot writes these bytes, one copy moves them to the
// host, and the host checks them before any row becomes visible. Plain data; CUDA code includes it.
#pragma once

#include <moetap/device_fault.h>
#include <moetap/shape.h>
#include <moetap/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>

#include "lib/internal/export.h"
#include "lib/internal/marked_slot.h"

namespace moetap {

// The head of a record, written on the device.
struct StepReport {
  Step step;
  std::int64_t num_tokens;   // whose rows are in the record
  std::int64_t step_tokens;  // of the forward pass
  std::uint32_t fault;       // DeviceFault: the first fault, if any
  std::int32_t fault_layer;  // index into the row
  std::int64_t fault_token;
  std::int64_t fault_value;
};
static_assert(sizeof(StepReport) == 48 && std::is_trivially_copyable_v<StepReport>);

// A record is [StepReport][captured: num_layers x uint64][slots: num_tokens x MarkedSlot][rows].
// `num_tokens` counts the tokens whose rows are wanted, in order. `captured[l]` is the step in
// which layer l was last captured. The slot of a row with a missing route is marked. Rows are
// narrow, row_bytes each. All parts are 64-byte aligned. A record of fewer tokens is shorter, so
// that one contiguous copy moves it.
struct MOETAP_INTERNAL_API StepRecordLayout {
  StepRecordLayout(const ModelShape& shape, std::int64_t num_tokens);
  std::size_t captured;  // byte offsets
  std::size_t slots;
  std::size_t rows;
  std::size_t bytes;  // of the whole record
};

// A record in host memory.
struct MOETAP_INTERNAL_API StepRecordView {
  StepRecordView(const ModelShape& shape, std::int64_t num_tokens, std::span<std::byte> bytes);
  StepReport* report;
  std::span<Step> captured;
  std::span<MarkedSlot> slots;
  std::span<std::byte> rows;
};

// Whether the record is of this step. If so, its slots are the step's, whatever else is wrong.
MOETAP_INTERNAL_API bool has_slots(const StepRecordView& record, Step step);

// Why this record must not be published, or nothing. Reasons: a step or token count other than
// expected, a device fault (with the model's layer id, token and value), or layers that were not
// captured (with their model layer ids).
MOETAP_INTERNAL_API std::optional<std::string> fault_of(const StepRecordView& record,
                                                        const ModelShape& shape, Step step,
                                                        std::int64_t num_slots);

}  // namespace moetap
