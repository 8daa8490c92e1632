// What a worker and its scheduler must agree on.
#pragma once

#include <moetap/shape.h>
#include <moetap/transport.h>

#include <cstdint>
#include <string>

namespace moetap {

// How the `shm` transport lays its buffer out.
enum class ShmLayout : std::uint8_t {
  native,  // narrow ids, a step stamp beside each row, a control block
  wire,    // int32 [slot][layer][top_k], no header, no stamps: a vLLM process can be the other end
};

// One worker's (data-parallel rank's) channel to its scheduler. Both sides build the same one.
struct Endpoint {
  std::string instance;  // of the engine: letters, digits, '-', '_', '.'; 1 to 64 characters
  int dp_rank = 0;
  ModelShape shape;
  std::int64_t num_slots = 0;            // of the anchor KV-cache group: num_blocks * block_size
  std::int64_t max_tokens = 0;           // the most tokens a step can have
  int ring_depth = 4;                    // device transport: steps that may wait for the scheduler
  ShmLayout layout = ShmLayout::native;  // shm transport
  Milliseconds limit{30'000};  // for any wait on the other side: attach, a full ring, a lock

  // ArgumentError that names the field, its value and what is allowed.
  void validate() const;
};

}  // namespace moetap
