// The description that a worker and its scheduler must agree on.
#pragma once

#include <moetap/error.h>
#include <moetap/export.h>
#include <moetap/shape.h>
#include <moetap/topology.h>
#include <moetap/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace moetap {

// The layout of the `shm` transport's buffer.
enum class ShmLayout : std::uint8_t {
  native,  // narrow ids, a step stamp beside each row, a control block
  wire,    // int32 [slot][hidden layer][top_k], no header, no stamps: a vLLM process can be the
           // other end. Has all shape.num_hidden_layers() layers, including dense ones
};

// One worker's channel to its scheduler. Both sides construct an equal Endpoint. There is one per
// data-parallel rank, or one for each stage and part of it if several of its ranks publish (see
// endpoints_of).
struct MOETAP_API Endpoint {
  std::string instance;  // the engine's: letters, digits, '-', '_', '.'; 1 to 64 characters
  int dp_rank = 0;
  int stage = 0;     // pipeline stage: 0 to 999
  int part = 0;      // the tensor-parallel rank, if each publishes its part of the tokens: 0 to 999
  ModelShape shape;  // of the rows that are published here
  std::int64_t num_slots = 0;   // of the anchor KV-cache group: num_blocks * block_size
  std::int64_t max_tokens = 0;  // the maximum number of tokens in a step
  int ring_depth = 4;           // device transport: steps that can wait for the scheduler
  // Steps that the engine runs at once; endpoint_of() raises it to at least the number of pipeline
  // stages. A smaller ring would stall the engine.
  int steps_in_flight = 1;
  ShmLayout layout = ShmLayout::native;  // shm transport
  Milliseconds timeout{30'000};  // timeout of each wait for the other side: attach, full ring, lock
  // Worker: puts all its shared memory in huge pages (native layout); part of the last page may be
  // unused. An error says why if this machine has none, or too few free. To fall back to normal
  // pages, ask why_no_huge_pages() (segments.h) first.
  bool huge_pages = false;

  // ArgumentError that names the field, its value and what is allowed.
  void validate() const;
  // As validate(), for the device transport: ring_depth must be at least steps_in_flight.
  void validate_ring() const;
};

// The endpoint of one rank, which publishes or only captures. `engine` describes the whole model;
// its dp_rank, stage and part are ignored. ArgumentError for a topology that is not supported, for
// a stage without MoE layers, and for the wire layout if its one buffer would need several owners.
MOETAP_API Endpoint endpoint_of(const Endpoint& engine, const Topology& rank);

// The endpoints that the scheduler of topology.dp_rank reads: [stages that have MoE layers][parts].
MOETAP_API std::vector<std::vector<Endpoint>> endpoints_of(const Endpoint& engine,
                                                           const Topology& topology);

}  // namespace moetap
