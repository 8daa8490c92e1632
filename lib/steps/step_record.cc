#include "lib/internal/step_record.h"

#include <moetap/device_fault.h>
#include <moetap/error.h>
#include <moetap/step.h>

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "lib/internal/injection.h"
#include "lib/internal/number_format.h"
#include "lib/internal/numbers.h"
#include "lib/internal/text.h"

namespace moetap {
namespace {

constexpr std::size_t kAlign = 64;

constexpr std::size_t aligned(std::size_t bytes) { return detail::round_up(bytes, kAlign); }

// A record must not be trusted: fault_layer comes from memory that another process can write.
std::string layer_name(const ModelShape& shape, std::int32_t index) {
  if (index < 0 || index >= shape.num_layers()) return fmt::format("layer index {}", index);
  return fmt::format("layer {}", shape.moe_layers()[static_cast<std::size_t>(index)]);
}

std::string weights_named(std::int64_t type) {
  if (type < 0 || type > static_cast<std::int64_t>(WeightType::bfloat16)) return "unknown";
  return type == 0 ? "no" : std::string(weight_type_name(static_cast<WeightType>(type)));
}

std::string device_fault(const StepReport& report, const ModelShape& shape,
                         std::int64_t num_slots) {
  switch (static_cast<DeviceFault>(report.fault)) {
    case DeviceFault::expert_id:
      if (report.fault_value == kNotGathered) {
        return fmt::format(
            "{}, token {}: its routes did not come from the rank that has them; the worker's "
            "Collective::check() says why",
            layer_name(shape, report.fault_layer), report.fault_token);
      }
      return fmt::format(
          "{}, token {}: expert id {} is outside [0, {}); capture logical ids, before any map to "
          "physical replicas",
          layer_name(shape, report.fault_layer), report.fault_token, report.fault_value,
          shape.num_experts());
    case DeviceFault::slot:
      return fmt::format(
          "token {}: slot {} is outside [0, {}); pass the slot mapping of the anchor KV-cache "
          "group",
          report.fault_token, report.fault_value, num_slots);
    case DeviceFault::layer_twice:
      return fmt::format(
          "{} was captured twice in this step; bind and capture only the target model's layers",
          layer_name(shape, report.fault_layer));
    case DeviceFault::rows:
      return fmt::format(
          "{}: topk_ids has {} rows, too few for the step's {} tokens; replay a graph that was "
          "recorded for at least as many",
          layer_name(shape, report.fault_layer), report.fault_value, report.step_tokens);
    case DeviceFault::weights:
      return fmt::format(
          "{} was captured with {} weights, but rows are of {}: give the weights that the shape "
          "has "
          "(RouteWriter::begin), or a shape without them to both ends",
          layer_name(shape, report.fault_layer), weights_named(report.fault_value),
          shape.to_string());
    case DeviceFault::pick:
      return fmt::format(
          "{}, token {}: a router put pick {}, but rows hold {} from 0; declare the picks of fused "
          "shared experts after them in CapturerOptions::shared_expert_columns",
          layer_name(shape, report.fault_layer), report.fault_token, report.fault_value,
          shape.top_k());
    case DeviceFault::repeated_id:
      return fmt::format(
          "{}, token {}: expert id {} was picked twice, but a top-{} router picks distinct "
          "experts; "
          "was topk_ids written before its capture? For a model that repeats experts on purpose "
          "declare it: ModelShape::with_repeated_experts",
          layer_name(shape, report.fault_layer), report.fault_token, report.fault_value,
          shape.top_k());
    case DeviceFault::none:
      break;
  }
  return fmt::format("the device reports an unknown fault {}; are both ends of one version?",
                     report.fault);
}

std::optional<std::string> missing_layers(const StepRecordView& record, const ModelShape& shape,
                                          Step step) {
  std::vector<int> missing;
  for (std::size_t i = 0; i < record.captured.size(); ++i) {
    if (record.captured[i] != step) missing.push_back(shape.moe_layers()[i]);
  }
  if (missing.empty()) return std::nullopt;
  return fmt::format(
      "{} {} not captured in this step; call capture() from every bound layer, also in fused "
      "kernels and in each graph",
      (missing.size() == 1 ? "layer " : "layers ") + detail::join_ranges(missing),
      missing.size() == 1 ? "was" : "were");
}

std::optional<std::string> slot_out_of_range(std::span<const MarkedSlot> slots,
                                             std::int64_t num_slots) {
  Slot highest = -1;  // one pass without branches: this runs over every token of every step
  for (const MarkedSlot marked : slots) highest = std::max(highest, marked.slot());
  if (highest < Slot(num_slots)) return std::nullopt;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const Slot slot = slots[i].slot();
    if (slot >= Slot(num_slots)) {
      return fmt::format("row {} of the record: slot {} is outside [0, {})", i, slot, num_slots);
    }
  }
  // Others may write to the record: a second read may differ from the first.
  return fmt::format("slot {} is outside [0, {}), and was changed meanwhile", highest, num_slots);
}

}  // namespace

StepRecordLayout::StepRecordLayout(const ModelShape& shape, std::int64_t num_tokens) {
  constexpr std::int64_t kMaxTokens = std::int64_t{1} << 32;  // so that no product below overflows
  if (num_tokens < 0 || num_tokens > kMaxTokens) {
    throw ArgumentError(
        fmt::format("a step record of {} tokens; allowed are 0 to {}", num_tokens, kMaxTokens));
  }
  const auto tokens = static_cast<std::size_t>(num_tokens);
  captured = aligned(sizeof(StepReport));
  slots = captured + aligned(static_cast<std::size_t>(shape.num_layers()) * sizeof(Step));
  rows = slots + aligned(tokens * sizeof(MarkedSlot));
  bytes = rows + aligned(tokens * shape.row_bytes());
}

StepRecordView::StepRecordView(const ModelShape& shape, std::int64_t num_tokens,
                               std::span<std::byte> bytes) {
  const StepRecordLayout layout(shape, num_tokens);
  if (bytes.size() < layout.bytes) {
    throw ArgumentError(fmt::format("a step record of {} tokens takes {} bytes, given are {}",
                                    num_tokens, layout.bytes, bytes.size()));
  }
  if (reinterpret_cast<std::uintptr_t>(bytes.data()) % alignof(StepReport) != 0) {
    throw ArgumentError(fmt::format("a step record at {}, which is not {}-byte aligned",
                                    static_cast<const void*>(bytes.data()), alignof(StepReport)));
  }
  const auto tokens = static_cast<std::size_t>(num_tokens);
  report = reinterpret_cast<StepReport*>(bytes.data());
  captured = {reinterpret_cast<Step*>(bytes.data() + layout.captured),
              static_cast<std::size_t>(shape.num_layers())};
  slots = {reinterpret_cast<MarkedSlot*>(bytes.data() + layout.slots), tokens};
  rows = bytes.subspan(layout.rows, tokens * shape.row_bytes());
}

bool has_slots(const StepRecordView& record, Step step) {
  return record.report->step == step &&
         record.report->num_tokens == static_cast<std::int64_t>(record.slots.size());
}

std::optional<std::string> fault_of(const StepRecordView& record, const ModelShape& shape,
                                    Step step, std::int64_t num_slots) {
  StepReport report;  // a copy, which cannot change while it is checked and described
  std::memcpy(&report, record.report, sizeof report);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (report.step != step) {
    return fmt::format("the record holds step {} where step {} was expected: it was overwritten",
                       report.step, step);
  }
  if (report.num_tokens != static_cast<std::int64_t>(record.slots.size())) {
    return fmt::format("the record holds {} tokens where {} were expected", report.num_tokens,
                       record.slots.size());
  }
  if (report.fault != 0) return device_fault(report, shape, num_slots);
  // Without tokens there is no row that could lack a layer.
  if (record.slots.empty()) return std::nullopt;
  if (auto fault = missing_layers(record, shape, step); fault && !MOETAP_OFF("H3 every layer")) {
    return fault;
  }
  return slot_out_of_range(record.slots, num_slots);
}

}  // namespace moetap
