#include "tool/live_segment.h"

#include <moetap/error.h>
#include <moetap/read_transport.h>

#include <fmt/format.h>

#include <cstring>

#include "tool/inspection.h"

namespace moetap::tool {
namespace {

// The timeout for the lock: a look that would take longer is skipped.
constexpr Milliseconds kTimeout{100};

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
      if (id < layer.picks.size()) ++layer.picks[id];  // rows are only as reliable as their writer
    }
  }
}

// Samples every n-th of the given slots, at most so many, whatever their number.
class EvenSample {
 public:
  explicit EvenSample(std::size_t most) : most_(most) {}

  void add(Slot slot) {
    if (count_++ % stride_ != 0) return;
    if (slots_.size() == most_) {
      for (std::size_t i = 0; 2 * i < slots_.size(); ++i) slots_[i] = slots_[2 * i];
      slots_.resize((most_ + 1) / 2);
      stride_ *= 2;
      if ((count_ - 1) % stride_ != 0) return;
    }
    slots_.push_back(slot);
  }

  std::size_t count() const { return count_; }
  const std::vector<Slot>& slots() const { return slots_; }

 private:
  std::size_t most_;
  std::size_t stride_ = 1;
  std::size_t count_ = 0;
  std::vector<Slot> slots_;
};

}  // namespace

LiveSegment::LiveSegment(const SegmentInfo& segment) : segment_(segment) { look(); }

Activity LiveSegment::look() {
  Activity activity{.name = segment_.name, .ring = segment_.kind == SegmentInfo::Kind::ring};
  try {
    if (!file_) file_ = std::make_unique<SegmentFile>(segment_.name);
    if (!endpoint_) endpoint_ = endpoint_of(*file_);
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
    endpoint.timeout = kTimeout;
    reader_ = make_shm_reader(endpoint);
    last_step_ = reader_->poll();  // the first look only sets the starting point
  }
  activity.last_step = reader_->poll();
  if (activity.last_step <= last_step_) return;
  const StepWindow window{last_step_ + 1, activity.last_step};
  EvenSample newer(kSample);
  for_each_stamps(*file_, endpoint_->num_slots, [&](Slot first, std::span<const Step> stamps) {
    for (std::size_t i = 0; i < stamps.size(); ++i) {
      if (row_state(stamps[i], window) == RowState::present) {
        newer.add(first + static_cast<std::int64_t>(i));
      }
    }
  });
  activity.rows = newer.count();
  sample(newer.slots(), window, activity);
}

void LiveSegment::sample(const std::vector<Slot>& slots, StepWindow window, Activity& activity) {
  const ModelShape& shape = endpoint_->shape;
  for (const int layer : shape.moe_layers()) {
    activity.load.push_back(
        {layer, std::vector<std::uint64_t>(static_cast<std::size_t>(shape.num_experts()))});
  }
  std::vector<std::byte> rows(slots.size() * shape.row_bytes());
  std::vector<RowState> states(slots.size());
  reader_->read(slots, {&window, 1}, rows, states);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (states[i] != RowState::present) continue;
    ++activity.sampled;
    count(std::span(rows).subspan(i * shape.row_bytes(), shape.ids_bytes()), shape, activity.load);
  }
}

}  // namespace moetap::tool
