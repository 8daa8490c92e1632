#include "live_segment.h"

#include <moetap/error.h>
#include <moetap/readers.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "inspection.h"

namespace moetap::tool {
namespace {

// For the lock: a look that has to wait for longer is left out.
constexpr Milliseconds kLimit{100};

std::uint32_t id_at(std::span<const std::byte> row, IdType type, std::size_t index) {
  if (type == IdType::uint8) return std::to_integer<std::uint32_t>(row[index]);
  std::uint16_t id = 0;
  std::memcpy(&id, &row[index * sizeof id], sizeof id);
  return id;
}

void count(std::span<const std::byte> row, const ModelShape& shape, std::vector<LayerLoad>& load) {
  std::size_t index = 0;
  for (LayerLoad& layer : load) {
    for (int k = 0; k < shape.top_k(); ++k, ++index) {
      const std::uint32_t id = id_at(row, shape.id_type(), index);
      if (id < layer.picks.size()) ++layer.picks[id];  // rows are as good as who wrote them
    }
  }
}

}  // namespace

LiveSegment::LiveSegment(const SegmentInfo& segment) : segment_(segment) { look(); }

Activity LiveSegment::look() {
  Activity activity{.name = segment_.name, .ring = segment_.kind == SegmentInfo::Kind::ring};
  try {
    if (!endpoint_) endpoint_ = endpoint_of(segment_);
    if (!file_) file_ = std::make_unique<SegmentFile>(segment_.name);
    if (file_->owner_pid() == 0) throw TimeoutError("its worker has died or ended");
    const Inspection found = activity.ring ? inspect(segment_) : Inspection{};
    activity.problem = found.problem;
    activity.waiting = found.waiting;
    activity.last_step = found.last_step;
    if (!activity.ring) look_at_buffer(activity);
    activity.steps = activity.last_step > last_step_ ? activity.last_step - last_step_ : 0;
    last_step_ = activity.last_step;
  } catch (const std::exception& error) {
    activity.problem = error.what();
  }
  return activity;
}

void LiveSegment::look_at_buffer(Activity& activity) {
  if (!reader_) {
    Endpoint endpoint = *endpoint_;
    endpoint.limit = kLimit;
    reader_ = make_shm_reader(endpoint);
    last_step_ = reader_->last_step();  // the first look only says where it starts
  }
  activity.last_step = reader_->last_step();
  if (activity.last_step <= last_step_) return;
  const StepWindow window{last_step_ + 1, activity.last_step};
  std::vector<Slot> newer;
  const std::vector<Step> stamps = read_stamps(*file_, endpoint_->num_slots);
  for (std::size_t slot = 0; slot < stamps.size(); ++slot) {
    if (row_state(stamps[slot], window) == RowState::present) {
      newer.push_back(static_cast<Slot>(slot));
    }
  }
  activity.rows = newer.size();
  sample(newer, window, activity);
}

// Rows that are spread evenly over those that are newer, so that one lock's hold is short.
void LiveSegment::sample(const std::vector<Slot>& slots, StepWindow window, Activity& activity) {
  const ModelShape& shape = endpoint_->shape;
  for (const int layer : shape.moe_layers()) {
    activity.load.push_back(
        {layer, std::vector<std::uint64_t>(static_cast<std::size_t>(shape.num_experts()))});
  }
  std::vector<Slot> some(std::min(slots.size(), kSample));
  for (std::size_t i = 0; i < some.size(); ++i) some[i] = slots[i * slots.size() / some.size()];
  std::vector<std::byte> rows(some.size() * shape.row_bytes());
  std::vector<RowState> states(some.size());
  reader_->read(some, {&window, 1}, rows, states);
  for (std::size_t i = 0; i < some.size(); ++i) {
    if (states[i] != RowState::present) continue;
    ++activity.sampled;
    count(std::span(rows).subspan(i * shape.row_bytes(), shape.row_bytes()), shape, activity.load);
  }
}

}  // namespace moetap::tool
