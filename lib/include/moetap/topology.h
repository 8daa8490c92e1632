// How an engine spreads a model and its tokens over ranks, what this rank has to do, and which
// arrangements cannot be served.
#pragma once

#include <moetap/shape.h>
#include <moetap/step.h>

#include <cstdint>
#include <vector>

namespace moetap {

// Under sequence parallelism, how the tokens' parts come together.
enum class SequenceParts : std::uint8_t {
  none,       // each rank's router sees all tokens of its data-parallel rank
  gathered,   // each sees a part: gathered before capture, see <moetap/collective.h>
  published,  // each sees a part and publishes it from its own endpoint, see join_parts()
};

// One rank's place. Every rank and the scheduler describe the same engine and differ in the ranks
// only, so that they agree on who publishes what.
struct Topology {
  int dp_size = 1;
  int dp_rank = 0;
  int tp_size = 1;
  int tp_rank = 0;
  int output_rank = 0;  // the tensor-parallel rank that publishes, in each stage
  int pp_size = 1;
  int pp_rank = 0;
  int sp_size = 1;  // ranks that the tokens are split over: 1, or all tp_size
  int ep_size = 1;  // ranks that the experts are spread over; captured ids are logical and global
  int cp_size = 1;  // context parallelism: not supported

  RankLayout layout = RankLayout::local;  // of topk_ids, as the router (or the gather) leaves them
  SequenceParts parts = SequenceParts::none;

  // The model's MoE layer ids of each pipeline stage, ascending; a stage may have none, and need
  // not have neighbours. May be empty for pp_size 1: all.
  std::vector<std::vector<int>> stage_layers{};

  // ArgumentError that says what cannot be served and what to change. Call it before anything else.
  void validate(const ModelShape& model) const;

  // The stages that have MoE layers. The others capture and publish nothing, and have no endpoint;
  // a scheduler reads these only.
  std::vector<int> moe_stages() const;

  // Whether this rank needs a Capturer: not in a stage without MoE layers.
  bool captures() const;
  // Whether its rows go to the scheduler. One that only captures takes a capture-only transport, so
  // that all ranks run the same graphs.
  bool publishes() const;

  // The rows of one stage. RangeError for a stage outside [0, pp_size), ArgumentError for one
  // without MoE layers.
  ModelShape stage_shape(const ModelShape& model, int stage) const;
};

}  // namespace moetap
