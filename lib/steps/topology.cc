#include <moetap/error.h>
#include <moetap/topology.h>

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "lib/internal/text.h"

namespace moetap {
namespace {

void check_rank(std::string_view what, int rank, int size) {
  if (size < 1 || rank < 0 || rank >= size) {
    throw ArgumentError(
        fmt::format("topology: {} rank {} of {}; ranks are 0 to size - 1", what, rank, size));
  }
}

void check_sequence_parts(const Topology& topology) {
  if (topology.sp_size != 1 && topology.sp_size != topology.tp_size) {
    throw ArgumentError(fmt::format(
        "topology: sp_size is {}, but tokens can be split over all tensor-parallel ranks ({}) or "
        "over none (1)",
        topology.sp_size, topology.tp_size));
  }
  const bool split = topology.sp_size > 1;
  if (split && topology.parts == SequenceParts::none) {
    throw ArgumentError(
        fmt::format("topology: the tokens are split over {} ranks and not gathered, so no "
                    "rank has all rows: set parts to gathered (<moetap/collective.h>) or published",
                    topology.sp_size));
  }
  if (!split && topology.parts != SequenceParts::none) {
    throw ArgumentError(
        "topology: parts are to be gathered or published, but sp_size is 1: set parts to none, or "
        "sp_size to tp_size");
  }
  if (split && topology.layout != RankLayout::local) {
    throw ArgumentError(
        "topology: sequence-parallel parts hold this data-parallel rank's tokens only: layout must "
        "be local");
  }
}

void check_experts(const Topology& topology) {
  const std::int64_t ranks = std::int64_t{topology.dp_size} * topology.tp_size;
  if (topology.ep_size < 1 || ranks % topology.ep_size != 0) {
    throw ArgumentError(
        fmt::format("topology: ep_size is {}, but experts are spread over some of the {} data- and "
                    "tensor-parallel ranks: it must divide them",
                    topology.ep_size, ranks));
  }
}

void check_stage(int stage, const std::vector<int>& layers, const ModelShape& model) {
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (!std::ranges::binary_search(model.moe_layers(), layers[i])) {
      throw ArgumentError(
          fmt::format("topology: stage {} has MoE layer {}, which the model does not have: its MoE "
                      "layers are {}",
                      stage, layers[i], detail::join_ranges(model.moe_layers())));
    }
    if (i > 0 && layers[i] <= layers[i - 1]) {
      throw ArgumentError(
          fmt::format("topology: stage {} has MoE layer {} after layer {}: name each once, in "
                      "ascending order",
                      stage, layers[i], layers[i - 1]));
    }
  }
}

void check_every_layer_once(const Topology& topology, const ModelShape& model) {
  std::vector<int> missing;
  for (const int layer : model.moe_layers()) {
    int owner = -1;
    for (int stage = 0; stage < topology.pp_size; ++stage) {
      if (!std::ranges::binary_search(topology.stage_layers[static_cast<std::size_t>(stage)],
                                      layer)) {
        continue;
      }
      if (owner >= 0) {
        throw ArgumentError(
            fmt::format("topology: MoE layer {} is in stages {} and {}: a row takes it from one",
                        layer, owner, stage));
      }
      owner = stage;
    }
    if (owner < 0) missing.push_back(layer);
  }
  if (missing.empty()) return;
  throw ArgumentError(
      fmt::format("topology: MoE layers {} are in no pipeline stage, so no row could ever be whole",
                  detail::join_ranges(missing)));
}

void check_stages(const Topology& topology) {
  if (topology.stage_layers.size() == static_cast<std::size_t>(topology.pp_size)) return;
  throw ArgumentError(fmt::format(
      "topology: stage_layers has {} entries for {} pipeline stages: name the MoE layers of each",
      topology.stage_layers.size(), topology.pp_size));
}

// Also of a topology that was not validated. stage_layers is not empty.
const std::vector<int>& layers_of(const Topology& topology, int stage) {
  check_stages(topology);
  check_rank("pipeline", stage, topology.pp_size);
  return topology.stage_layers[static_cast<std::size_t>(stage)];
}

void check_pipeline(const Topology& topology, const ModelShape& model) {
  if (topology.stage_layers.empty() && topology.pp_size == 1) return;
  check_stages(topology);
  for (int stage = 0; stage < topology.pp_size; ++stage) {
    check_stage(stage, topology.stage_layers[static_cast<std::size_t>(stage)], model);
  }
  check_every_layer_once(topology, model);
}

}  // namespace

void Topology::validate(const ModelShape& model) const {
  check_rank("data-parallel", dp_rank, dp_size);
  check_rank("tensor-parallel", tp_rank, tp_size);
  check_rank("output", output_rank, tp_size);
  check_rank("pipeline", pp_rank, pp_size);
  if (cp_size != 1) {
    throw ArgumentError(fmt::format(
        "topology: context parallelism over {} ranks is not supported: each rank holds the keys "
        "and values of other tokens of a request, so one slot number means several tokens; run "
        "with cp_size 1",
        cp_size));
  }
  check_sequence_parts(*this);
  check_experts(*this);
  check_pipeline(*this, model);
}

std::vector<int> Topology::moe_stages() const {
  if (stage_layers.empty()) return {0};
  check_stages(*this);
  std::vector<int> stages;
  for (int stage = 0; stage < pp_size; ++stage) {
    if (!layers_of(*this, stage).empty()) stages.push_back(stage);
  }
  return stages;
}

bool Topology::captures() const {
  return stage_layers.empty() || !layers_of(*this, pp_rank).empty();
}

bool Topology::publishes() const {
  return captures() && (tp_rank == output_rank || parts == SequenceParts::published);
}

ModelShape Topology::stage_shape(const ModelShape& model, int stage) const {
  if (stage < 0 || stage >= pp_size) {
    throw RangeError(fmt::format("stage {} is outside [0, {})", stage, pp_size));
  }
  if (stage_layers.empty()) return model;
  const std::vector<int>& layers = layers_of(*this, stage);
  if (layers.empty()) {
    throw ArgumentError(
        fmt::format("stage {} has no MoE layers: it captures and publishes nothing, and no "
                    "reader attaches to it (see Topology::moe_stages)",
                    stage));
  }
  return model.with_layers(layers);
}

}  // namespace moetap
