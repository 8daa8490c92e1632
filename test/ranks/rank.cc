#include "test/ranks/rank.h"

#include <moetap/topk_ids.h>
#include <moetap/transport.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <numeric>
#include <thread>
#include <utility>

namespace moetap::test {
namespace {

std::unique_ptr<Transport> make_transport(const Plan& plan, const Topology& topology,
                                          Device& device) {
  const Endpoint endpoint = endpoint_of(plan.engine(), topology);
  if (!topology.publishes()) return make_capture_only_transport(device, endpoint);
  if (plan.transport == "shm") return make_shm_transport(device, endpoint);
  return make_device_transport(device, endpoint);
}

}  // namespace

Rank::Rank(const Plan& plan, const Topology& topology, Device& device, MPI_Comm tp_ranks)
    : plan_(plan),
      topology_(topology),
      shape_(topology.stage_shape(plan.router().shape, topology.pp_rank)),
      device_(device),
      stream_(device.make_stream()),
      ids_(device.allocate(static_cast<std::size_t>(num_layers() * max_rows() * kStride) * 8)),
      weights_(device.allocate(static_cast<std::size_t>(num_layers() * max_rows() * kStride) *
                               weight_bytes(shape_.weight_type()))),
      slots_(device.allocate(Plan::kPadded * sizeof(Slot))),
      ranks_(make_mpi_collective(device, tp_ranks, Milliseconds(plan.timeout_ms))),
      capturer_(make_transport(plan, topology, device),
                {.dp_rank = topology.dp_rank,
                 .dp_size = topology.dp_size,
                 .layout = topology.layout,
                 .shared_expert_columns = plan.gathers() ? 0 : kShared}) {
  for (const int layer : shape_.moe_layers()) capturer_.bind(layer);
  for (int i = 0; i < num_layers(); ++i) {
    gathers_.emplace_back(device, *ranks_, shape_.top_k(), Plan::kPadded, kShared,
                          shape_.weight_type());
  }
  if (plan.graph != "none") record_graph();
}

TokenRange Rank::own_part(Step step) const {
  const std::vector<std::int64_t> counts = plan_.part_tokens(step, topology_.dp_rank);
  const auto own = counts.begin() + topology_.tp_rank;
  const std::int64_t start = std::accumulate(counts.begin(), own, std::int64_t{0});
  return {start, start + *own};
}

std::int64_t Rank::num_tokens(Step step) const {
  if (plan_.parts == "published") return own_part(step).size();
  return plan_.num_tokens(step, topology_.dp_rank);
}

std::vector<std::int64_t> Rank::router_rows(Step step) const {
  std::vector<std::int64_t> rows;
  const auto add = [&](int dp_rank, TokenRange tokens, std::int64_t count) {
    for (std::int64_t i = tokens.start; i < tokens.start + count; ++i) {
      const bool real = i < tokens.end && i < plan_.num_tokens(step, dp_rank);
      rows.push_back(real ? Plan::router_row(dp_rank, i) : -1);
    }
  };
  const int own = topology_.dp_rank;
  if (plan_.gathers()) {  // as long as the longest part
    add(own, own_part(step), plan_.part_tokens(step, own).front());
  } else if (plan_.parts == "published") {
    add(own, own_part(step), own_part(step).size());
  } else if (topology_.layout == RankLayout::local) {
    add(own, {0, plan_.num_tokens(step, own)}, plan_.padded_tokens(step, own));
  } else {
    for (int rank = 0; rank < plan_.dp; ++rank) {
      add(rank, {0, plan_.num_tokens(step, rank)}, plan_.padded_tokens(step, rank));
    }
  }
  return rows;
}

TopkIds Rank::topk_ids(int layer, std::int64_t rows) const {
  const auto first = static_cast<std::size_t>(layer * max_rows() * kStride);
  return {.data = ids_.data() + first * 8,
          .type = IdType::int64,
          .rows = rows,
          .columns = shape_.top_k() + kShared,
          .row_stride = kStride,
          .weights = {.data = weights_.data() + first * weight_bytes(shape_.weight_type()),
                      .type = shape_.weight_type(),
                      .row_stride = kStride}};
}

// Every id that is no pick of a real token is no expert's.
void Rank::route(Step step) {
  Buffer& upload = uploads_.emplace_back(device_.allocate_pinned(ids_.size()));
  std::memset(upload.data(), 0x7F, upload.size());
  const Router router = plan_.router();
  const std::vector<std::int64_t> rows = router_rows(step);
  for (int layer = 0; layer < num_layers(); ++layer) {
    const int in_model =
        router.shape.layer_index(shape_.moe_layers()[static_cast<std::size_t>(layer)]);
    auto* ids = upload.as<std::int64_t>() + layer * max_rows() * kStride;
    for (const std::int64_t row : rows) {
      for (int k = 0; row >= 0 && k < shape_.top_k(); ++k) {
        ids[k] = router.pick(step, row, in_model, k);
      }
      ids += kStride;
    }
  }
  stream_->copy(ids_.data(), upload.data(), upload.size());
  if (weights_.size() > 0) route_weights(step);
}

void Rank::route_weights(Step step) {
  Buffer& upload = uploads_.emplace_back(device_.allocate_pinned(weights_.size()));
  std::memset(upload.data(), 0x7F, upload.size());
  const Router router = plan_.router();
  const std::vector<std::int64_t> rows = router_rows(step);
  const std::size_t width = weight_bytes(shape_.weight_type());
  for (int layer = 0; layer < num_layers(); ++layer) {
    const int in_model =
        router.shape.layer_index(shape_.moe_layers()[static_cast<std::size_t>(layer)]);
    std::byte* to = upload.data() + static_cast<std::size_t>(layer * max_rows() * kStride) * width;
    for (const std::int64_t row : rows) {
      for (int k = 0; row >= 0 && k < shape_.top_k(); ++k) {
        const std::uint32_t bits = router.weight(step, row, in_model, k) >> (32 - 8 * width);
        std::memcpy(to + static_cast<std::size_t>(k) * width, &bits, width);
      }
      to += static_cast<std::size_t>(kStride) * width;
    }
  }
  stream_->copy(weights_.data(), upload.data(), upload.size());
}

void Rank::queue_slots(Step step) {
  std::vector<Slot> slots = plan_.slots(step, topology_.dp_rank);
  if (plan_.parts == "published") {
    const TokenRange own = own_part(step);
    slots.assign(slots.begin() + own.start, slots.begin() + own.end);
  }
  if (slots.empty()) return;
  Buffer& upload = uploads_.emplace_back(device_.allocate_pinned(slots.size() * sizeof(Slot)));
  std::memcpy(upload.data(), slots.data(), upload.size());
  stream_->copy(slots_.data(), upload.data(), upload.size());
}

// What this rank believes; one with trouble believes that there is no padding.
std::vector<std::int64_t> Rank::agreed_parts(Step step) const {
  const bool miscounts = plan_.trouble == "miscounts" && step == Step(plan_.trouble_step);
  if (!miscounts || topology_.tp_rank != 1) return plan_.part_tokens(step, topology_.dp_rank);
  return plan_.split(plan_.num_tokens(step, topology_.dp_rank));
}

TopkIds Rank::whole(int layer, Step step) {
  const TopkIds ids = topk_ids(layer, static_cast<std::int64_t>(router_rows(step).size()));
  if (!plan_.gathers()) return ids;
  return gathers_[static_cast<std::size_t>(layer)].gather(ids, agreed_parts(step), *stream_);
}

void Rank::capture_layers(const std::vector<TopkIds>& ids) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    capturer_.capture(shape_.moe_layers()[i], ids[i], *stream_);
  }
}

// After a pass without it, as engines do.
void Rank::record_graph() {
  std::vector<TopkIds> ids;
  ids.reserve(static_cast<std::size_t>(num_layers()));
  if (plan_.graph == "inside") stream_->begin_capture();
  for (int layer = 0; layer < num_layers(); ++layer) ids.push_back(whole(layer, 1));
  const GraphGuard recording(capturer_, Plan::kPadded);
  stream_->begin_capture();
  capture_layers(ids);
  graph_ = stream_->end_capture();
}

void Rank::run(Step step) {
  if (plan_.trouble != "none" && step == Step(plan_.trouble_step) && topology_.tp_rank == 1) {
    if (plan_.trouble == "dies") {
      stream_->synchronize();  // what it gathered before, the others have
      raise(SIGKILL);
    }
    if (plan_.trouble == "late") std::this_thread::sleep_for(std::chrono::milliseconds(100));
    if (plan_.trouble == "too_late") {
      std::this_thread::sleep_for(std::chrono::milliseconds(3 * plan_.timeout_ms));
    }
  }
  route(step);
  queue_slots(step);
  std::vector<std::int64_t> dp_tokens;
  dp_tokens.reserve(static_cast<std::size_t>(plan_.dp));
  for (int rank = 0; rank < plan_.dp; ++rank) dp_tokens.push_back(plan_.num_tokens(step, rank));
  StepInfo info{.step = step, .num_tokens = num_tokens(step)};
  if (plan_.parts != "published") info.padded_tokens = plan_.padded_tokens(step, topology_.dp_rank);
  if (topology_.layout == RankLayout::concatenated) info.dp_tokens = dp_tokens;
  capturer_.begin_step(info, *stream_);

  std::vector<TopkIds> ids;
  ids.reserve(static_cast<std::size_t>(num_layers()));
  for (int layer = 0; layer < num_layers(); ++layer) ids.push_back(whole(layer, step));
  if (graph_) {
    stream_->launch(*graph_);
  } else {
    capture_layers(ids);
  }
  capturer_.publish(slots_.as<const Slot>(), *stream_);
  for (const StepFailed& failure : capturer_.take_failures()) throw failure;
}

}  // namespace moetap::test
