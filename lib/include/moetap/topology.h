// How an engine distributes a model and its tokens over ranks, what each rank has to do, and which
// arrangements are not supported.
#pragma once

#include <moetap/export.h>
#include <moetap/shape.h>
#include <moetap/step.h>

#include <cstdint>
#include <vector>

namespace moetap {

// How the parts of a step's tokens are put together under sequence parallelism.
enum class SequenceParts : std::uint8_t {
  none,       // each rank's router sees all tokens of its data-parallel rank
  gathered,   // each sees a part; parts are gathered before capture, see <moetap/collective.h>
  published,  // each sees a part and publishes it from its own endpoint, see join_parts()
};

// The position of one rank. Every rank and the scheduler describe the same engine and differ only
// in the `…_rank` fields. So they agree on which rank publishes which rows.
struct MOETAP_API Topology {
  int dp_size = 1;
  int dp_rank = 0;
  int tp_size = 1;
  int tp_rank = 0;
  int output_rank = 0;  // the tensor-parallel rank that publishes in each stage
  int pp_size = 1;
  int pp_rank = 0;
  int sp_size = 1;  // ranks that the tokens are split over: 1 or tp_size
  int ep_size = 1;  // ranks that the experts are spread over; captured ids are logical and global
  int cp_size = 1;  // context parallelism: not supported

  RankLayout layout = RankLayout::local;  // of topk_ids as the router (or the gather) outputs them
  SequenceParts parts = SequenceParts::none;

  // The MoE layer ids of each pipeline stage, in ascending order. A stage may have none, and its
  // layers need not be adjacent. May be empty if pp_size is 1: all layers.
  std::vector<std::vector<int>> stage_layers{};

  // ArgumentError that says what is not supported and what to change. Call it before anything else.
  void validate(const ModelShape& model) const;

  // The stages that have MoE layers. A scheduler reads only these. The others capture and publish
  // nothing, and have no endpoint. ArgumentError if stage_layers has another number of stages.
  std::vector<int> moe_stages() const;

  // Whether this rank needs a Capturer: not in a stage without MoE layers. ArgumentError as above.
  bool captures() const;
  // Whether this rank's rows go to the scheduler. A rank that only captures uses a capture-only
  // transport, so that all ranks run the same graphs.
  bool publishes() const;

  // The shape of one stage's rows. RangeError for a stage outside [0, pp_size), ArgumentError for
  // one without MoE layers.
  ModelShape stage_shape(const ModelShape& model, int stage) const;
};

}  // namespace moetap
