#include "test/gpu/differential/cache_run.h"

#include <algorithm>
#include <cstring>

#include "test/gpu/devices.h"
#include "test/gpu/picks_kernels.h"

namespace moetap::test {
namespace {

std::size_t to_size(std::int64_t value) { return static_cast<std::size_t>(value); }

}  // namespace

CacheRun::CacheRun(Device& device, const CacheCase& cache)
    : case_(cache),
      device_(device),
      stream_(device.make_stream()),
      cache_(device, cache.shape, cache.max_tokens, "differential/0"),
      sinks_(cache.layers.size()),
      outputs_(cache.layers.size()) {
  if (cache.compare_all_picks) cache_.compare_all_picks();
  place_layers();
  ids_ = device.allocate(host_ids_.size());
  weights_ = device.allocate(host_weights_.size());
  pinned_ = device.allocate_pinned(host_ids_.size() + host_weights_.size());
  for (std::size_t i = 0; i < case_.layers.size(); ++i) {
    const auto layer = static_cast<int>(i);
    const std::int64_t first_row =
        case_.first_row_from_step ? DeviceCache::kRowFromStep : case_.fixed_first_row;
    if (case_.layers[i].way == Way::sink) {
      sinks_[i] = cache_.sink(layer, first_row, DeviceCache::kAllRows, case_.layers[i].declared);
    }
    if (case_.layers[i].way == Way::output) outputs_[i] = cache_.route_output(layer);
  }
}

void CacheRun::place_layers() {
  std::size_t ids = 0, weights = 0;
  const std::size_t rows = to_size(case_.max_rows);
  const auto start = [](std::size_t& end, std::int64_t offset, std::size_t element) {
    end = (end + 15) / 16 * 16 + to_size(offset) * element;
    return end;
  };
  for (const LayerCase& layer : case_.layers) {
    Place place;
    const std::size_t id = id_bytes(layer.type), weight = weight_bytes(layer.weights);
    place.ids = start(ids, layer.offset, id);
    ids += rows * to_size(layer.stride) * id;
    place.weights = start(weights, layer.weight_offset, weight);
    weights += rows * to_size(layer.weight_stride) * weight;
    places_.push_back(place);
  }
  host_ids_.resize(ids);
  host_weights_.resize(weights);
}

// Whatever is not a pick of this rank's tokens is no expert's, and would be noticed.
void CacheRun::write_layer(const StepCase& step, std::size_t layer) {
  const LayerCase& how = case_.layers[layer];
  const LayerStep& picks = step.layers[layer];
  const std::size_t id = id_bytes(how.type), weight = weight_bytes(how.weights);
  const std::size_t ids_size = to_size(case_.max_rows * how.stride) * id;
  const std::size_t weights_size = to_size(case_.max_rows * how.weight_stride) * weight;
  std::memset(host_ids_.data() + places_[layer].ids, 0xFE, ids_size);
  std::memset(host_weights_.data() + places_[layer].weights, 0x80, weights_size);
  const std::int64_t top_k = case_.shape.top_k();
  for (std::int64_t token = 0; token < step.num_tokens; ++token) {
    const std::int64_t row = case_.first_row(step) + token;
    if (row >= case_.max_rows) return;
    const auto first = to_size(token * top_k);
    std::byte* const ids = host_ids_.data() + places_[layer].ids + to_size(row * how.stride) * id;
    std::byte* const weights =
        host_weights_.data() + places_[layer].weights + to_size(row * how.weight_stride) * weight;
    for (std::size_t k = 0; k < to_size(top_k); ++k) {
      std::memcpy(ids + k * id, &picks.ids[first + k], id);  // the lower bytes
      if (weight > 0) std::memcpy(weights + k * weight, &picks.weights[first + k], weight);
    }
  }
}

void CacheRun::upload_picks(const StepCase& step) {
  for (std::size_t layer = 0; layer < case_.layers.size(); ++layer) write_layer(step, layer);
  std::memcpy(pinned_.data(), host_ids_.data(), host_ids_.size());
  stream_->copy(ids_.data(), pinned_.data(), host_ids_.size());
  if (host_weights_.empty()) return;
  std::memcpy(pinned_.data() + host_ids_.size(), host_weights_.data(), host_weights_.size());
  stream_->copy(weights_.data(), pinned_.data() + host_ids_.size(), host_weights_.size());
}

void CacheRun::launch_sink(const StepCase& step, std::size_t layer) {
  const LayerCase& how = case_.layers[layer];
  const LayerStep& picks = step.layers[layer];
  SinkPicks kernel{.topk_ids = ids_.as<const std::int32_t>(places_[layer].ids),
                   .rows = step.rows,
                   .columns = how.stride,
                   .sink = sinks_[layer],
                   .first_k = picks.first_k,
                   .shared = picks.shared,
                   .left_out = picks.left_out};
  if (!picks.without_weights && how.weights != WeightType::none) {
    kernel.weight_type = how.weights;
    kernel.weights = weights_.data() + places_[layer].weights;
  }
  stream_->launch(kernel, 1);
}

void CacheRun::launch(const StepCase& step, std::size_t layer) {
  const LayerCase& how = case_.layers[layer];
  switch (how.way) {
    case Way::capture: {
      TopkIds ids{.data = ids_.data() + places_[layer].ids,
                  .type = how.type,
                  .rows = step.rows,
                  .columns = case_.shape.top_k(),
                  .row_stride = how.stride};
      if (how.weights != WeightType::none) {
        ids.weights = {weights_.data() + places_[layer].weights, how.weights, how.weight_stride,
                       how.gathered};
      }
      const std::int64_t first_row =
          case_.first_row_from_step ? DeviceCache::kRowFromStep : case_.fixed_first_row;
      return cache_.capture(static_cast<int>(layer), ids, first_row, *stream_);
    }
    case Way::sink:
      return launch_sink(step, layer);
    case Way::output:
      return stream_->launch(
          OutputPicks{.topk_ids = ids_.as<const std::int32_t>(places_[layer].ids),
                      .rows = step.layers[layer].written,
                      .top_k = case_.shape.top_k(),
                      .output = outputs_[layer].data},
          1);
  }
}

void CacheRun::launch_layers(const StepCase& step) {
  for (std::size_t layer = 0; layer < case_.layers.size(); ++layer) {
    for (int i = 0; i < step.layers[layer].launches; ++i) launch(step, layer);
  }
}

std::vector<std::byte> CacheRun::run(const StepCase& step) {
  upload_picks(step);
  std::vector<Slot> slots;
  for (const std::int64_t slot : step.slots) slots.emplace_back(slot);
  const Buffer slot_mapping = upload(device_, *stream_, slots);
  std::vector<std::uint32_t> list = step.wanted.value_or(std::vector<std::uint32_t>());
  list.push_back(0);  // an empty list is one too
  const Buffer tokens = upload(device_, *stream_, list);
  const std::size_t bytes = StepRecordLayout(case_.shape, step.num_rows()).bytes + 2 * kMargin;
  const Buffer memory = device_.allocate(bytes + to_size(step.record_offset));
  stream_->fill(memory.data(), std::to_integer<std::uint8_t>(kUnwritten), memory.size());
  if (case_.graph && graph_ == nullptr) {
    stream_->begin_capture();
    launch_layers(step);
    graph_ = stream_->end_capture();
  }

  cache_.begin_step(Step(++number_), step.num_tokens, step.dp_row, *stream_);
  case_.graph ? stream_->launch(*graph_) : launch_layers(step);
  std::byte* const from = memory.data() + step.record_offset;
  cache_.snapshot(slot_mapping.as<const Slot>(), step.num_rows(), case_.num_slots, from + kMargin,
                  *stream_, step.wanted ? tokens.as<const std::uint32_t>() : nullptr);
  cache_.end_step(*stream_);
  return download(device_, *stream_, from, bytes);
}

}  // namespace moetap::test
