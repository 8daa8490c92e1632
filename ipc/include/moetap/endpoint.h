// What a worker and its scheduler must agree on.
#pragma once

#include <moetap/error.h>
#include <moetap/shape.h>
#include <moetap/topology.h>
#include <moetap/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace moetap {

// How the `shm` transport lays its buffer out.
enum class ShmLayout : std::uint8_t {
  native,  // narrow ids, a step stamp beside each row, a control block
  wire,    // int32 [slot][hidden layer][top_k], no header, no stamps: a vLLM process can be the
           // other end; shape.num_hidden_layers() of them, dense ones too
};

// One worker's channel to its scheduler. Both sides build the same one. One a data-parallel rank;
// one a stage or part of it where several of its ranks publish (see endpoints_of).
struct Endpoint {
  std::string instance;  // of the engine: letters, digits, '-', '_', '.'; 1 to 64 characters
  int dp_rank = 0;
  int stage = 0;  // of a pipeline: 0 to 999
  int part = 0;   // the tensor-parallel rank, where each publishes its part of the tokens: 0 to 999
  ModelShape shape;             // of the rows that are published here
  std::int64_t num_slots = 0;   // of the anchor KV-cache group: num_blocks * block_size
  std::int64_t max_tokens = 0;  // the most tokens a step can have
  int ring_depth = 4;           // device transport: steps that may wait for the scheduler
  int steps_in_flight =
      1;  // that the engine works on at once; endpoint_of() raises it to the stages
          // of the pipeline. With a ring below that no schedule could run freely.
  ShmLayout layout = ShmLayout::native;  // shm transport
  Milliseconds limit{30'000};  // for any wait on the other side: attach, a full ring, a lock
  // Worker: all of its shared memory in huge pages, of which the last may be used in part only;
  // native layout. An error that says why if this machine gives none, or too few just now; ask
  // why_no_huge_pages() (segments.h) first to do without then.
  bool huge_pages = false;

  // ArgumentError that names the field, its value and what is allowed.
  void validate() const;
  // As validate(), of the device transport: ring_depth must be at least steps_in_flight.
  void validate_ring() const;
};

// The endpoint of one rank, which publishes or only captures. `engine` describes the whole model;
// its dp_rank, stage and part do not matter. ArgumentError for a topology that cannot be served, a
// stage without MoE layers, and for the wire layout where its one buffer would need several owners.
Endpoint endpoint_of(const Endpoint& engine, const Topology& rank);

// Those that the scheduler of topology.dp_rank reads: of each stage that has MoE layers, each part.
std::vector<std::vector<Endpoint>> endpoints_of(const Endpoint& engine, const Topology& topology);

}  // namespace moetap
