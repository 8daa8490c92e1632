#include "gpu/internal/device_cache.h"

#include <moetap/error.h>
#include <moetap/topk_ids.h>

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <set>
#include <utility>

#include "gpu/capture/kernels.h"
#include "gpu/capture/outside_graph.h"
#include "gpu/capture/picks_check.h"
#include "gpu/capture/snapshot_kernel.h"
#include "gpu/capture/weight_kernels.h"
#include "lib/internal/injection.h"
#include "lib/internal/number_format.h"

namespace moetap {

MOETAP_DEFINE_KERNEL(BeginStepKernel);
MOETAP_DEFINE_KERNEL(CheckLayersKernel);
MOETAP_DEFINE_KERNEL(ClearLayersKernel);
MOETAP_DEFINE_KERNEL(CaptureKernel<std::uint8_t>);
MOETAP_DEFINE_KERNEL(CaptureKernel<std::uint16_t>);
MOETAP_DEFINE_KERNEL(CaptureKernel<std::int16_t>);
MOETAP_DEFINE_KERNEL(CaptureKernel<std::int32_t>);
MOETAP_DEFINE_KERNEL(CaptureKernel<std::int64_t>);
MOETAP_DEFINE_KERNEL(SnapshotKernel<std::uint8_t>);
MOETAP_DEFINE_KERNEL(SnapshotKernel<std::uint16_t>);
MOETAP_DEFINE_KERNEL(WeightedCaptureKernel<std::uint8_t>);
MOETAP_DEFINE_KERNEL(WeightedCaptureKernel<std::uint16_t>);
MOETAP_DEFINE_KERNEL(WeightedCaptureKernel<std::int16_t>);
MOETAP_DEFINE_KERNEL(WeightedCaptureKernel<std::int32_t>);
MOETAP_DEFINE_KERNEL(WeightedCaptureKernel<std::int64_t>);
MOETAP_DEFINE_KERNEL(WeightedSnapshotKernel<std::uint8_t>);
MOETAP_DEFINE_KERNEL(WeightedSnapshotKernel<std::uint16_t>);

namespace {

// The models that have a device cache in this process.
std::mutex owners_mutex;
std::set<std::string>& owners() {
  static std::set<std::string> names;
  return names;
}

std::int64_t blocks_for(std::int64_t n, std::int64_t block) { return (n + block - 1) / block; }

}  // namespace

DeviceCache::Owner::Owner(std::string name) : name_(std::move(name)) {
  const std::lock_guard lock(owners_mutex);
  if (!owners().insert(name_).second) {
    throw OwnedError(fmt::format(
        "this process already has a device cache for '{}': graphs captured with it write to its "
        "memory, so a second one would miss their routes; use the first, or destroy it",
        name_));
  }
}

DeviceCache::Owner::~Owner() {
  const std::lock_guard lock(owners_mutex);
  owners().erase(name_);
}

DeviceCache::Layout::Layout(const ModelShape& shape, std::int64_t max_tokens) {
  const auto part = [this](std::size_t size) {
    const std::size_t offset = bytes;
    bytes += (size + 255) / 256 * 256;
    return offset;
  };
  const auto tokens = static_cast<std::size_t>(max_tokens);
  step = part(sizeof(DeviceStep));
  captured = part(static_cast<std::size_t>(shape.num_layers()) * sizeof(std::uint64_t));
  writer = part(static_cast<std::size_t>(shape.num_layers()));
  missing_step = part(tokens * sizeof(std::uint64_t));
  routes = part(tokens * shape.row_ids() * sizeof(std::uint16_t));
  weights = part(tokens * shape.row_ids() * weight_bytes(shape.weight_type()));
}

std::size_t DeviceCache::bytes(const ModelShape& shape, std::int64_t max_tokens) {
  return Layout(shape, max_tokens).bytes;
}

DeviceCache::DeviceCache(Device& device, const ModelShape& shape, std::int64_t max_tokens,
                         std::string owner)
    : owner_(std::move(owner)),
      device_(device),
      shape_(shape),
      max_tokens_(max_tokens),
      layout_(shape, max_tokens),
      memory_(device.allocate(layout_.bytes)),
      used_(device.make_event()),
      distinct_(shape.repeats_experts() ? Distinct::none : Distinct::first_two),
      writer_(static_cast<std::size_t>(shape.num_layers())),
      copied_(static_cast<std::size_t>(shape.num_layers())) {
  // Stamps of step 0 ("none") and unwritten ids, also for a sink that is taken in an open step.
  const std::unique_ptr<Stream> stream = device.make_stream();
  stream->fill(memory_.data(), 0, layout_.routes);
  stream->fill(memory_.data() + layout_.routes, 0xFF, layout_.weights - layout_.routes);
  stream->synchronize();
  load_kernels();
}

DeviceCache::~DeviceCache() = default;

// A kernel that is loaded at its first launch could wait there for work that waits for this launch.
void DeviceCache::load_kernels() {
  const auto load = [this]<class... Kernels>() {
    (device_.load(KernelEntryOf<Kernels>::entry), ...);
  };
  load.operator()<BeginStepKernel, CheckLayersKernel, ClearLayersKernel>();
  if (shape_.weight_type() == WeightType::none) {
    load.operator()<CaptureKernel<std::uint8_t>, CaptureKernel<std::uint16_t>,
                    CaptureKernel<std::int16_t>, CaptureKernel<std::int32_t>,
                    CaptureKernel<std::int64_t>, SnapshotKernel<std::uint8_t>,
                    SnapshotKernel<std::uint16_t>>();
  } else {
    load.operator()<WeightedCaptureKernel<std::uint8_t>, WeightedCaptureKernel<std::uint16_t>,
                    WeightedCaptureKernel<std::int16_t>, WeightedCaptureKernel<std::int32_t>,
                    WeightedCaptureKernel<std::int64_t>, WeightedSnapshotKernel<std::uint8_t>,
                    WeightedSnapshotKernel<std::uint16_t>>();
  }
}

void DeviceCache::compare_all_picks() {
  if (distinct_ != Distinct::none) distinct_ = Distinct::all;
}

void DeviceCache::begin_step(Step step, std::int64_t num_tokens, std::int64_t dp_row,
                             Stream& stream) {
  if (num_tokens < 0 || num_tokens > max_tokens_) {
    throw RangeError(fmt::format(
        "step {} has {} tokens, the device cache has {} rows; raise max_tokens to the most tokens "
        "that the engine schedules in a step",
        step, num_tokens, max_tokens_));
  }
  require_outside_graph(stream, "begin_step()");
  stream.wait(*used_);
  const DeviceStep value{.step = step.value(), .num_tokens = num_tokens, .dp_row = dp_row};
  stream.launch(BeginStepKernel{.step = memory_.as<DeviceStep>(layout_.step), .value = value}, 1);
  step_ = step;
  num_tokens_ = num_tokens;
  tell_writers(stream);
  open_ = true;
  launch_cleared<ClearLayersKernel>(num_tokens, stream);
}

void DeviceCache::require_layer(int layer) const {
  if (layer >= 0 && layer < shape_.num_layers()) return;
  throw RangeError(fmt::format("layer index {} is outside [0, {}): see ModelShape::layer_index",
                               layer, shape_.num_layers()));
}

void DeviceCache::require_own(int layer) const {
  require_layer(layer);
  const auto index = static_cast<std::size_t>(layer);
  if (writer_[index] != ClearedLayers::output) return;
  throw StateError(fmt::format(
      "layer {}: a fused kernel was given its routing output, so nothing else may capture it",
      shape_.moe_layers()[index]));
}

void DeviceCache::set_writer(int layer, std::uint8_t writer) {
  const auto index = static_cast<std::size_t>(layer);
  if (writer_[index] == writer) return;
  if (copied_[index] && open_) {
    throw StateError(fmt::format(
        "layer {}: the first sink or routing output of a layer that was captured with capture() "
        "before, in an open step: its ids of an older step are not cleared; take it before "
        "begin_step(), or in begin_graph()",
        shape_.moe_layers()[index]));
  }
  writer_[index] = writer;
  writers_changed_ = true;
}

// Queued in the order of the step's stream: earlier steps, which may still be in flight, were not
// cleared for these layers.
void DeviceCache::tell_writers(Stream& stream) {
  if (!writers_changed_) return;
  for (std::size_t i = 0; i < writer_.size(); ++i) {
    if (writer_[i] == ClearedLayers::none) continue;
    stream.fill(memory_.data() + layout_.writer + i, writer_[i], 1);
  }
  writers_changed_ = false;
}

RouteSink DeviceCache::sink(int layer, std::int64_t first_row, std::int64_t end_row,
                            int shared_columns) {
  require_own(layer);
  if (shape_.num_experts() > ClearedLayers::kUnwritten) {
    throw ArgumentError(fmt::format(
        "layer {}: a sink for {} experts; up to {} a pick that was not put can be told from an id, "
        "so capture() this layer's topk_ids",
        shape_.moe_layers()[static_cast<std::size_t>(layer)], shape_.num_experts(),
        ClearedLayers::kUnwritten));
  }
  set_writer(layer, ClearedLayers::sink);
  return layer_sink(layer, first_row, end_row, shared_columns);
}

RouteSink DeviceCache::layer_sink(int layer, std::int64_t first_row, std::int64_t end_row,
                                  int shared_columns) const {
  const auto index = static_cast<std::size_t>(layer);
  const std::size_t layer_ids =
      static_cast<std::size_t>(max_tokens_) * static_cast<std::size_t>(shape_.top_k());
  const WeightType weights = shape_.weight_type();
  return {.step = memory_.as<DeviceStep>(layout_.step),
          .captured = memory_.as<std::uint64_t>(layout_.captured) + index,
          .missing_step = memory_.as<std::uint64_t>(layout_.missing_step),
          .routes = memory_.as<std::uint16_t>(layout_.routes) + index * layer_ids,
          .first_row = first_row,
          .end_row = end_row,
          .layer = layer,
          .top_k = shape_.top_k(),
          .num_experts = static_cast<std::uint32_t>(shape_.num_experts()),
          .shared_columns = shared_columns,
          .weight_type = weights,
          .distinct = distinct_,
          .weights = weights == WeightType::none ? nullptr
                                                 : memory_.data() + layout_.weights +
                                                       index * layer_ids * weight_bytes(weights)};
}

RouteOutput DeviceCache::route_output(int layer) {
  require_layer(layer);
  if (!holds_ids(IdType::int16, shape_.num_experts())) {
    throw ArgumentError(fmt::format("int16 routing output for {} experts; it holds up to 32768",
                                    shape_.num_experts()));
  }
  if (shape_.weight_type() != WeightType::none) {
    throw ArgumentError(fmt::format(
        "layer {}: a routing output for rows of {}; a fused kernel's weights could not be told "
        "from "
        "an older step's, so capture ids without weights, or use a router that gives them",
        shape_.moe_layers()[static_cast<std::size_t>(layer)], shape_.to_string()));
  }
  set_writer(layer, ClearedLayers::output);
  auto* const routes = memory_.as<std::int16_t>(layout_.routes);
  return {.data = routes + static_cast<std::int64_t>(layer) * max_tokens_ * shape_.top_k(),
          .rows = max_tokens_,
          .columns = shape_.top_k()};
}

ClearedLayers DeviceCache::cleared_layers() const {
  return {.step = memory_.as<DeviceStep>(layout_.step),
          .writer = memory_.as<std::uint8_t>(layout_.writer),
          .captured = memory_.as<std::uint64_t>(layout_.captured),
          .missing_step = memory_.as<std::uint64_t>(layout_.missing_step),
          .routes = memory_.as<std::uint16_t>(layout_.routes),
          .max_tokens = max_tokens_,
          .blocks_per_layer = blocks_for(num_tokens_, ClearedLayers::kTokens),
          .top_k = shape_.top_k(),
          .num_experts = static_cast<std::uint32_t>(shape_.num_experts()),
          .distinct = distinct_};
}

template <class Kernel>
void DeviceCache::launch_cleared(std::int64_t num_tokens, Stream& stream) {
  const bool any = std::ranges::any_of(
      writer_, [](std::uint8_t writer) { return writer != ClearedLayers::none; });
  if (num_tokens == 0 || !any) return;
  const ClearedLayers layers = cleared_layers();
  stream.launch(Kernel{layers}, layers.blocks_per_layer * shape_.num_layers());
}

template <class T>
void DeviceCache::launch_capture(int layer, const TopkIds& topk_ids, std::int64_t first_row,
                                 Stream& stream) {
  const CaptureKernel<T> kernel{.topk_ids = static_cast<const T*>(topk_ids.data),
                                .rows = topk_ids.rows,
                                .row_stride = topk_ids.row_stride,
                                .sink = layer_sink(layer, first_row, kAllRows, 0)};
  // Enough blocks for any step that these rows can serve; at least one, which stamps the layer.
  const std::int64_t rows =
      std::min(topk_ids.rows - std::max<std::int64_t>(first_row, 0), max_tokens_);
  const std::int64_t blocks = std::max<std::int64_t>(1, blocks_for(rows, kernel.kTokens));
  const TopkWeights& weights = topk_ids.weights;
  if (weights.type == WeightType::none) return stream.launch(kernel, blocks);
  const WeightSource source{weights.data, weights.row_stride, weights.type, weights.gathered};
  stream.launch(WeightedCaptureKernel<T>{kernel, source}, blocks);
}

void DeviceCache::capture(int layer, const TopkIds& topk_ids, std::int64_t first_row,
                          Stream& stream) {
  require_own(layer);
  const int model_layer = shape_.moe_layers()[static_cast<std::size_t>(layer)];
  if (!holds_ids(topk_ids.type, shape_.num_experts()) && !MOETAP_OFF("H21 a type for every id")) {
    throw ArgumentError(fmt::format("layer {}: topk_ids of {} cannot hold the ids of {} experts",
                                    model_layer, id_type_name(topk_ids.type),
                                    shape_.num_experts()));
  }
  if (const auto why =
          detail::why_unreadable(topk_ids, topk_ids.rows, shape_.top_k(), shape_.weight_type())) {
    throw ArgumentError(fmt::format("layer {}: {}", model_layer, *why));
  }
  copied_[static_cast<std::size_t>(layer)] = true;
  switch (topk_ids.type) {
    case IdType::uint8:
      return launch_capture<std::uint8_t>(layer, topk_ids, first_row, stream);
    case IdType::uint16:
      return launch_capture<std::uint16_t>(layer, topk_ids, first_row, stream);
    case IdType::int16:
      return launch_capture<std::int16_t>(layer, topk_ids, first_row, stream);
    case IdType::int32:
      return launch_capture<std::int32_t>(layer, topk_ids, first_row, stream);
    case IdType::int64:
      return launch_capture<std::int64_t>(layer, topk_ids, first_row, stream);
  }
}

template <class Id>
void DeviceCache::launch_snapshot(const Slot* slot_mapping, const std::uint32_t* tokens,
                                  std::int64_t num_rows, std::int64_t num_slots, std::byte* record,
                                  Stream& stream) {
  const StepRecordLayout at(shape_, num_rows);
  const std::int64_t blocks =
      std::max<std::int64_t>(1, blocks_for(num_rows, SnapshotKernel<Id>::kTokens));
  const SnapshotKernel<Id> kernel{
      .step = memory_.as<DeviceStep>(layout_.step),
      .missing_step = memory_.as<std::uint64_t>(layout_.missing_step),
      .routes = memory_.as<std::uint16_t>(layout_.routes),
      .slot_mapping = slot_mapping,
      .tokens = tokens,
      .slots = reinterpret_cast<MarkedSlot*>(record + at.slots),
      .rows = reinterpret_cast<Id*>(record + at.rows),
      .row_stride = static_cast<std::int64_t>(shape_.row_bytes() / sizeof(Id)),
      .num_rows = num_rows,
      .max_tokens = max_tokens_,
      .num_slots = num_slots,
      .num_layers = shape_.num_layers(),
      .top_k = shape_.top_k(),
      .blocks = static_cast<std::uint32_t>(blocks),
      .head = {.captured = memory_.as<std::uint64_t>(layout_.captured),
               .report = reinterpret_cast<StepReport*>(record),
               .record_captured = reinterpret_cast<Step*>(record + at.captured),
               .wanted = tokens == nullptr ? -1 : num_rows},
  };
  if (shape_.weight_type() == WeightType::none) return stream.launch(kernel, blocks);
  stream.launch(WeightedSnapshotKernel<Id>{kernel, memory_.data() + layout_.weights,
                                           static_cast<std::uint32_t>(shape_.weights_offset()),
                                           shape_.weight_type()},
                blocks);
}

void DeviceCache::snapshot(const Slot* slot_mapping, std::int64_t num_rows, std::int64_t num_slots,
                           std::byte* record, Stream& stream, const std::uint32_t* tokens) {
  tell_writers(stream);
  launch_cleared<CheckLayersKernel>(num_tokens_, stream);
  if (shape_.id_type() == IdType::uint8) {
    launch_snapshot<std::uint8_t>(slot_mapping, tokens, num_rows, num_slots, record, stream);
  } else {
    launch_snapshot<std::uint16_t>(slot_mapping, tokens, num_rows, num_slots, record, stream);
  }
}

void DeviceCache::end_step(Stream& stream) {
  open_ = false;
  stream.record(*used_);
}

void DeviceCache::abandon_step(Stream& stream) noexcept {
  try {
    end_step(stream);
  } catch (const std::exception&) {
    // No work of the step is waited for then.
  }
}

}  // namespace moetap
