#include <moetap/error.h>
#include <moetap/stages.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "ipc/internal/slot_lists.h"
#include "ipc/reader/joined_readers.h"
#include "lib/internal/expert_ids.h"
#include "lib/internal/text.h"

namespace moetap {
namespace {

bool one_step(const StepWindow& window) { return window.first == window.last; }

// The rank of a stage's state: the worst one becomes the joined row's.
int severity(RowState state) {
  switch (state) {
    case RowState::present:
      return 0;
    case RowState::unverified:
      return 1;
    case RowState::stale:
      return 2;
    case RowState::clobbered:
      return 3;
    case RowState::missing:
      break;
  }
  return 4;
}

// The state of a row whose stages were read with the window `used`.
RowState joined_state(RowState worst, const StepWindow& asked, const StepWindow& used) {
  if (one_step(asked) || worst == RowState::unverified) return worst;
  // Stale and clobbered would refer to the first stage's step, not to the window.
  if (one_step(used)) return worst == RowState::present ? worst : RowState::missing;
  // Present everywhere, but not known to be of one step.
  return worst == RowState::present ? RowState::missing : worst;
}

class StageReader final : public detail::JoinedReaders {
 public:
  StageReader(ModelShape model, std::vector<std::unique_ptr<SlotReadTransport>> stages);

  const ModelShape& shape() const override { return model_; }
  void read(std::span<const Slot> slots, std::span<const StepWindow> windows,
            std::span<std::byte> rows, std::span<RowState> states) override;
  void stamps(std::span<const Slot> slots, std::span<Step> written) override;
  void put(Step step, std::span<const Slot> slots, std::span<const std::byte> rows,
           std::span<const RowState> states) override;

 private:
  // Bytes that are contiguous both in a stage's row and in the whole row.
  struct Run {
    std::size_t in_stage;
    std::size_t in_row;
    std::size_t bytes;
  };
  std::vector<Run> runs_of(const ModelShape& stage) const;
  // `layers`: offsets of the first layer in the stage's row and in the whole row, and bytes per
  // layer.
  void add_runs(const Run& layers, const ModelShape& stage, std::vector<Run>& runs) const;
  void check_layers() const;
  std::size_t read_stage(std::size_t s, std::span<const Slot> slots,
                         std::span<const StepWindow> windows);
  std::span<const StepWindow> narrow(std::span<const Slot> slots,
                                     std::span<const StepWindow> windows);

  ModelShape model_;
  std::vector<std::vector<Run>> runs_;  // of each stage
  // Buffers of the current read or put; they keep the size of the largest.
  std::vector<std::byte> stage_rows_;
  std::vector<RowState> stage_states_;
  std::vector<StepWindow> windows_;
  std::vector<Step> written_;
};

StageReader::StageReader(ModelShape model, std::vector<std::unique_ptr<SlotReadTransport>> stages)
    : model_(std::move(model)) {
  if (stages.empty()) throw ArgumentError("no stages to join; give those that have MoE layers");
  for (auto& reader : stages) {
    const std::string layers =
        reader ? "layers " + detail::join_ranges(reader->shape().moe_layers()) : "unknown layers";
    add(std::move(reader), "the stage of " + layers);
    runs_.push_back(runs_of(members().back().reader->shape()));
  }
  check_layers();
}

std::vector<StageReader::Run> StageReader::runs_of(const ModelShape& stage) const {
  if (stage.top_k() != model_.top_k() || stage.num_experts() != model_.num_experts() ||
      stage.weight_type() != model_.weight_type() ||
      stage.repeats_experts() != model_.repeats_experts()) {
    throw ArgumentError(
        fmt::format("a stage has {}, the model {}: top-k, experts, whether they may repeat, and "
                    "weights must be equal",
                    stage.to_string(), model_.to_string()));
  }
  std::vector<Run> runs;
  const auto top_k = static_cast<std::size_t>(stage.top_k());
  add_runs({0, 0, top_k * id_bytes(stage.id_type())}, stage, runs);
  if (stage.weight_type() != WeightType::none) {
    add_runs({stage.weights_offset(), model_.weights_offset(),
              top_k * weight_bytes(stage.weight_type())},
             stage, runs);
  }
  return runs;
}

void StageReader::add_runs(const Run& layers, const ModelShape& stage,
                           std::vector<Run>& runs) const {
  std::size_t in_stage = layers.in_stage;
  for (const int layer : stage.moe_layers()) {
    const auto index = static_cast<std::size_t>(model_.layer_index(layer));
    const std::size_t in_row = layers.in_row + index * layers.bytes;
    const bool goes_on = !runs.empty() && runs.back().in_row + runs.back().bytes == in_row &&
                         runs.back().in_stage + runs.back().bytes == in_stage;
    if (goes_on) {
      runs.back().bytes += layers.bytes;
    } else {
      runs.push_back({in_stage, in_row, layers.bytes});
    }
    in_stage += layers.bytes;
  }
}

void StageReader::check_layers() const {
  std::vector<int> layers;
  for (const auto& [reader, name] : members()) {
    const std::vector<int>& own = reader->shape().moe_layers();
    layers.insert(layers.end(), own.begin(), own.end());
  }
  std::ranges::sort(layers);
  if (layers == model_.moe_layers()) return;
  throw ArgumentError(
      fmt::format("the stages have MoE layers {}, the model {}: each must be in one stage",
                  fmt::join(layers, ", "), detail::join_ranges(model_.moe_layers())));
}

// Narrows windows of several steps to the step of the first stage's row: a stage with another step
// does not have the same row. Only for rows that the first stage has present in the requested
// window, since it may know later steps of which it has no row.
std::span<const StepWindow> StageReader::narrow(std::span<const Slot> slots,
                                                std::span<const StepWindow> windows) {
  if (std::ranges::all_of(windows, one_step)) return windows;
  written_.resize(slots.size());
  windows_.resize(slots.size());
  first().stamps(slots, written_);
  read_stage(0, slots, windows);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const StepWindow& asked = windows[windows.size() == 1 ? 0 : i];
    const bool present =
        stage_states_[i] == RowState::present && row_state(written_[i], asked) == RowState::present;
    windows_[i] = present ? StepWindow{written_[i], written_[i]} : asked;
  }
  return windows_;
}

// Reads into stage_rows_ and stage_states_. Returns the bytes per row there.
std::size_t StageReader::read_stage(std::size_t s, std::span<const Slot> slots,
                                    std::span<const StepWindow> windows) {
  SlotReadTransport& stage = *members()[s].reader;
  const std::size_t row_bytes = stage.shape().row_bytes();
  const std::size_t bytes = slots.size() * row_bytes;
  stage_rows_.resize(std::max(stage_rows_.size(), bytes));
  stage_states_.resize(slots.size());
  stage.read(slots, windows, std::span(stage_rows_).first(bytes), stage_states_);
  return row_bytes;
}

void StageReader::read(std::span<const Slot> slots, std::span<const StepWindow> windows,
                       std::span<std::byte> rows, std::span<RowState> states) {
  const std::size_t n = slots.size();
  const std::size_t row_bytes = model_.row_bytes();
  check_read_sizes(n, windows.size(), rows.size(), states.size(), row_bytes);
  check_arrived(windows, arrived());  // as each stage would, but before the first of them is read
  const std::span<const StepWindow> used = narrow(slots, windows);
  for (std::size_t s = 0; s < runs_.size(); ++s) {
    const std::size_t stage_bytes = read_stage(s, slots, used);
    for (std::size_t i = 0; i < n; ++i) {
      if (s == 0 || severity(stage_states_[i]) > severity(states[i])) states[i] = stage_states_[i];
      for (const Run& run : runs_[s]) {
        std::memcpy(rows.data() + i * row_bytes + run.in_row,
                    stage_rows_.data() + i * stage_bytes + run.in_stage, run.bytes);
      }
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    states[i] = joined_state(states[i], windows[windows.size() == 1 ? 0 : i],
                             used[used.size() == 1 ? 0 : i]);
    if (has_routes(states[i])) {
      detail::clear_gap(model_, rows.data() + i * row_bytes);  // not covered by any run
    } else {
      std::memset(rows.data() + i * row_bytes, 0xFF, row_bytes);
    }
  }
}

void StageReader::stamps(std::span<const Slot> slots, std::span<Step> written) {
  first().stamps(slots, written);
  written_.resize(slots.size());
  for (std::size_t s = 1; s < runs_.size(); ++s) {
    members()[s].reader->stamps(slots, written_);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (written_[i] != written[i]) written[i] = 0;
    }
  }
}

void StageReader::put(Step step, std::span<const Slot> slots, std::span<const std::byte> rows,
                      std::span<const RowState> states) {
  const std::size_t n = slots.size();
  const std::size_t row_bytes = model_.row_bytes();
  if (rows.size() != n * row_bytes) {
    throw ArgumentError(
        fmt::format("put of {} rows from {} bytes: {} are needed", n, rows.size(), n * row_bytes));
  }
  for (std::size_t s = 0; s < runs_.size(); ++s) {
    SlotReadTransport& stage = *members()[s].reader;
    const std::size_t stage_bytes = stage.shape().row_bytes();
    stage_rows_.resize(std::max(stage_rows_.size(), n * stage_bytes));
    for (std::size_t i = 0; i < n; ++i) {
      detail::clear_gap(stage.shape(), stage_rows_.data() + i * stage_bytes);
      for (const Run& run : runs_[s]) {
        std::memcpy(stage_rows_.data() + i * stage_bytes + run.in_stage,
                    rows.data() + i * row_bytes + run.in_row, run.bytes);
      }
    }
    stage.put(step, slots, std::span(stage_rows_).first(n * stage_bytes), states);
  }
}

}  // namespace

std::unique_ptr<SlotReadTransport> join_stages(
    ModelShape model, std::vector<std::unique_ptr<SlotReadTransport>> stages) {
  return std::make_unique<StageReader>(std::move(model), std::move(stages));
}

}  // namespace moetap
